"""How this node's ranks are started, watched and ended: torch's elastic agent, signals, terminals, GPUs."""
