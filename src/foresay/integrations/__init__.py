"""foresay inside other engines: one room per host, and only it names the host."""
