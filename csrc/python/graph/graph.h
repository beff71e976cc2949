/* graph -- nodes of recorded graphs, and the walks over them, in C: the module shmgpu._graph.
 *
 * A tensor program records a node for each operation, and each message walks over all new nodes.
 * That is most of a child's work between two messages, so it is done in C. What an operation means
 * is defined in Python: its rules and gradients (shmgpu.ops) are asked once for each structure.
 * shmgpu/ops/graph.py and its neighbours have the same in Python, and use this where it was built.
 *
 * It uses CPython's limited API, so that one build serves all versions, and needs the GIL.
 *
 * Owns: the module's types and what its files share. Must never: know what an operation means, or
 * do what its Python twin does not.
 */
#ifndef SHMGPU_PYTHON_GRAPH_H
#define SHMGPU_PYTHON_GRAPH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* A value: known (a leaf), or what `op` makes of `inputs`. shmgpu.ops.graph.Node says what each
 * field is for. Those below the line belong to the walk that wrote them last: if the mark is not a
 * walk's own, that walk has not met the node. */
typedef struct {
  PyObject_HEAD
  PyObject *op;
  PyObject *inputs; /* a tuple of nodes */
  PyObject *params;
  PyObject *spec;
  PyObject *value; /* never NULL: None until it is computed */
  PyObject *leaf;
  PyObject *undo;
  PyObject *again; /* NULL but for checkpoints */
  PyObject *hooks; /* NULL where nobody looks at the gradient */
  long long number;
  int owners;
  char needs_grad;
  char is_released;
  /* ---- */
  int place; /* of a draft: see draft.c */
  int uses;
  uint64_t drafted; /* its mark */
  uint64_t visited; /* the mark of any other walk */
  int at;           /* its place in that walk */
} node_t;

/* What the module knows of Python's side, given once by bind(). */
typedef struct {
  PyTypeObject *node;     /* made here */
  PyTypeObject *template; /* made here */
  PyObject *scalar;       /* the type of a plain number's value */
  PyObject *grad_mode;
  PyObject *gradients, *enabled, *number, *rule; /* names of attributes */
} known_t;

extern known_t shmi_known;

static inline bool shmi_is_node(PyObject *one) {
  return Py_TYPE(one) == shmi_known.node;
}

static inline bool shmi_is_computed(const node_t *node) {
  return node->value != Py_None;
}

static inline bool shmi_is_scalar(const node_t *node) {
  return (PyObject *)Py_TYPE(node->value) == shmi_known.scalar;
}

/* The inputs of a node; how many there are. They are nodes: apply() and Node() see to that. */
static inline Py_ssize_t shmi_count(const node_t *node) {
  return PyTuple_Size(node->inputs);
}

static inline node_t *shmi_input(const node_t *node, Py_ssize_t at) {
  return (node_t *)PyTuple_GetItem(node->inputs, at);
}

/* A new node, which takes over the reference to its inputs; NULL with an exception. */
node_t *shmi_node(PyObject *op, PyObject *inputs, PyObject *params, PyObject *spec,
                  PyObject *value);

/* A mark that no walk had before. */
uint64_t shmi_mark(void);

/* Nodes that a walk has met. It holds references, because an allocation may start the garbage
 * collector, which may run any code. */
typedef struct {
  node_t **items;
  size_t count, room;
} nodes_t;

bool shmi_push(nodes_t *nodes, node_t *node); /* false with MemoryError */
void shmi_sort(nodes_t *nodes);               /* by number */
void shmi_free(nodes_t *nodes);
PyObject *shmi_listed(const nodes_t *nodes); /* a list */

/* Each file's types and functions, added to the module; -1 with an exception. */
int shmi_add_node(PyObject *module);
int shmi_add_template(PyObject *module);

PyObject *shmi_next_number(PyObject *module, PyObject *unused);
PyObject *shmi_apply(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *shmi_needed(PyObject *module, PyObject *roots);
PyObject *shmi_ordered(PyObject *module, PyObject *given);
PyObject *shmi_release(PyObject *module, PyObject *order);
PyObject *shmi_structure(PyObject *module, PyObject *given);
PyObject *shmi_draft(PyObject *module, PyObject *given);
PyObject *shmi_places(PyObject *module, PyObject *given);
PyObject *shmi_in_hand(PyObject *module, PyObject *given);
PyObject *shmi_unneeded(PyObject *module, PyObject *given);

#endif
