"""Side effects and the outside world: whose call it is, who does it, and how all ranks learn of it."""
