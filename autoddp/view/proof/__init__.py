"""How a module is shown to treat rows one by one."""
