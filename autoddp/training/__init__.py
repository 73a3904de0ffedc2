"""Features that run a training data-parallel: loaders, modules, gradients, optimizers."""
