"""Parameters that are sharded over ranks, for models that do not fit on one device.

The method is that of SimpleFSDP (arXiv:2411.00284): a parameter is gathered by a function of the
graph, whose backward is the reduce-scatter of its gradient, and what autograd saves of a gathered
parameter is freed and gathered again. In place of wrapped modules, a function of a sharded
parameter does so, wherever it is called: in a `forward`, in another method, in an optimizer. Read
`layout`, `shard`, `wholes`, `graph`, `functions`, in this order; then `units` and `feature`.
"""
