"""foresay inside other engines: one package per host, and only it names the host."""
