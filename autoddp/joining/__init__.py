"""How the other ranks come to a call of a function under `@distributed`, and leave it."""
