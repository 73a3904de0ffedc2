"""What makes a training parallel: loaders, modules, gradients."""
