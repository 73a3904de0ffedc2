"""Side effects of the script (files, processes, network, terminal, clocks), each done once."""
