"""Whole networks: from an exported torch program to one plan with shared maps and fused epilogues.

| module | what |
|---|---|
| `importer`, `import_ops` | torch.export program → level spconv, with the user's lines as locations |
| `graph` | a network at level spconv, and what it takes to run it |
| `recorder`, `recorded_ops` | what a model does, as text, without torch.export |
| `remembered` | networks on disk, found by that text |
| `boundary` | what stays in torch: before the first sparse op and after the last one |
| `passes` | the passes on level spconv, in order |
| `parameters` | numbers of the ops on parameters |
| `plan`, `memory` | the steps of a network; which buffers share memory |
| `kernels` | compiles and loads the kernels of the steps |
| `calls`, `runner` | runs the steps on the CPU: one call for all kernels behind the maps |
| `steps` | runs the steps on a GPU, one by one |
| `captured`, `replay` | queues all steps on a GPU as graphs, and when |
| `dense_tail` | dense results of more rows than there are |
| `saved`, `recipes`, `portable` | networks in files, for machines without the compiler |
| `arguments` | the arguments of calls, bound to the parameters of forward |
| `compile` | `sc.compile` and `sc.import_graph` |
"""
