"""foresay inside other engines: one module per host, and only it names the host."""
