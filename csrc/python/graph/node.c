/* node -- the type Node, and lists of nodes that walks keep.
 *
 * A long chain of nodes holds itself together by its inputs, so the last reference to its end frees
 * all of them, one within the other. Beyond a depth of NESTED they wait in a list until the
 * outermost is done: the C stack stays flat. See graph.h.
 */
#include "python/graph/graph.h"

#include <structmember.h>

#include <stddef.h>
#include <stdlib.h>

enum { NESTED = 50 };

static long long numbers;
static uint64_t marks;
static int depth;
static node_t *waiting; /* to be freed, linked by `leaf` */

uint64_t shmi_mark(void) {
  return ++marks;
}

/* next_number(): every node made until now has a lower one. */
PyObject *shmi_next_number(PyObject *module, PyObject *unused) {
  (void)module;
  (void)unused;
  return PyLong_FromLongLong(++numbers);
}

/* ---- lists -------------------------------------------------------------------------------- */

bool shmi_push(nodes_t *nodes, node_t *node) {
  if (nodes->count == nodes->room) {
    const size_t room = nodes->room ? 2 * nodes->room : 64;
    node_t **items = realloc(nodes->items, room * sizeof *items);
    if (items == NULL) {
      PyErr_NoMemory();
      return false;
    }
    nodes->items = items;
    nodes->room = room;
  }
  Py_INCREF(node);
  nodes->items[nodes->count++] = node;
  return true;
}

static int by_number(const void *a, const void *b) {
  const long long one = (*(node_t *const *)a)->number, other = (*(node_t *const *)b)->number;
  return (one > other) - (one < other);
}

/* Numbers of one step are dense as a rule: then each has a place of its own. */
void shmi_sort(nodes_t *nodes) {
  const size_t count = nodes->count;
  if (count < 2) return;
  long long least = nodes->items[0]->number, most = least;
  for (size_t at = 1; at < count; at++) {
    const long long number = nodes->items[at]->number;
    least = number < least ? number : least;
    most = number > most ? number : most;
  }
  const unsigned long long span = (unsigned long long)(most - least) + 1;
  node_t **places = span <= 8 * count ? calloc((size_t)span, sizeof *places) : NULL;
  if (places == NULL) {
    qsort(nodes->items, count, sizeof *nodes->items, by_number);
    return;
  }
  for (size_t at = 0; at < count; at++) {
    places[nodes->items[at]->number - least] = nodes->items[at];
  }
  for (size_t at = 0, place = 0; place < (size_t)span; place++) {
    if (places[place] != NULL) nodes->items[at++] = places[place];
  }
  free(places);
}

void shmi_free(nodes_t *nodes) {
  for (size_t at = 0; at < nodes->count; at++) Py_DECREF(nodes->items[at]);
  free(nodes->items);
  *nodes = (nodes_t){0};
}

PyObject *shmi_listed(const nodes_t *nodes) {
  PyObject *list = PyList_New((Py_ssize_t)nodes->count);
  for (size_t at = 0; list != NULL && at < nodes->count; at++) {
    Py_INCREF(nodes->items[at]);
    PyList_SetItem(list, (Py_ssize_t)at, (PyObject *)nodes->items[at]);
  }
  return list;
}

/* ---- the type ----------------------------------------------------------------------------- */

node_t *shmi_node(PyObject *op, PyObject *inputs, PyObject *params, PyObject *spec,
                  PyObject *value) {
  node_t *node = PyObject_GC_New(node_t, shmi_known.node);
  if (node == NULL) {
    Py_DECREF(inputs);
    return NULL;
  }
  Py_INCREF(op);
  Py_INCREF(params);
  Py_INCREF(spec);
  Py_INCREF(value);
  Py_INCREF(Py_None);
  Py_INCREF(Py_None);
  node->op = op;
  node->inputs = inputs;
  node->params = params;
  node->spec = spec;
  node->value = value;
  node->leaf = Py_None;
  node->undo = Py_None;
  node->again = NULL;
  node->hooks = NULL;
  node->number = ++numbers;
  node->owners = 0;
  node->needs_grad = 0;
  node->is_released = 0;
  node->place = node->uses = node->at = 0;
  node->drafted = node->visited = 0;
  PyObject_GC_Track(node);
  return node;
}

static bool are_nodes(PyObject *inputs) {
  if (!PyTuple_Check(inputs)) {
    PyErr_SetString(PyExc_TypeError, "the inputs of a node are a tuple of nodes");
    return false;
  }
  for (Py_ssize_t at = 0; at < PyTuple_Size(inputs); at++) {
    if (!shmi_is_node(PyTuple_GetItem(inputs, at))) {
      PyErr_SetString(PyExc_TypeError, "the inputs of a node are nodes");
      return false;
    }
  }
  return true;
}

static PyObject *node_new(PyTypeObject *type, PyObject *given, PyObject *named) {
  (void)type;
  PyObject *op, *inputs, *params, *spec, *value = Py_None;
  if (named != NULL || !PyArg_UnpackTuple(given, "Node", 4, 5, &op, &inputs, &params, &spec, &value)) {
    if (named != NULL) PyErr_SetString(PyExc_TypeError, "Node takes no named arguments");
    return NULL;
  }
  if (!are_nodes(inputs)) return NULL;
  Py_INCREF(inputs);
  return (PyObject *)shmi_node(op, inputs, params, spec, value);
}

static int node_traverse(node_t *node, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(node));
  Py_VISIT(node->inputs);
  Py_VISIT(node->value);
  Py_VISIT(node->leaf);
  Py_VISIT(node->undo);
  Py_VISIT(node->again);
  Py_VISIT(node->hooks);
  return 0;
}

static int node_clear(node_t *node) {
  PyObject *empty = PyTuple_New(0), *inputs = node->inputs, *value = node->value;
  node->inputs = empty;
  Py_XDECREF(inputs);
  Py_INCREF(Py_None);
  node->value = Py_None;
  Py_XDECREF(value);
  Py_CLEAR(node->leaf);
  Py_CLEAR(node->undo);
  Py_CLEAR(node->again);
  Py_CLEAR(node->hooks);
  return 0;
}

static void node_free(node_t *node) {
  PyTypeObject *type = Py_TYPE(node);
  Py_CLEAR(node->inputs);
  Py_CLEAR(node->value);
  Py_CLEAR(node->leaf);
  Py_CLEAR(node->undo);
  Py_CLEAR(node->again);
  Py_CLEAR(node->hooks);
  Py_CLEAR(node->op);
  Py_CLEAR(node->params);
  Py_CLEAR(node->spec);
  PyObject_GC_Del(node);
  Py_DECREF(type);
}

static void node_dealloc(node_t *node) {
  PyObject_GC_UnTrack(node);
  if (depth >= NESTED) {
    PyObject *leaf = node->leaf;
    node->leaf = (PyObject *)waiting;
    waiting = node;
    Py_XDECREF(leaf);
    return;
  }
  depth++;
  node_free(node);
  depth--;
  while (depth == 0 && waiting != NULL) {
    node_t *next = waiting;
    waiting = (node_t *)next->leaf;
    next->leaf = NULL;
    depth++;
    node_free(next);
    depth--;
  }
}

static PyObject *of_spec(node_t *node, void *name) {
  return PyObject_GetAttrString(node->spec, name);
}

static PyObject *get_inputs(node_t *node, void *unused) {
  (void)unused;
  Py_INCREF(node->inputs);
  return node->inputs;
}

static int set_inputs(node_t *node, PyObject *inputs, void *unused) {
  (void)unused;
  if (inputs == NULL || !are_nodes(inputs)) {
    if (inputs == NULL) PyErr_SetString(PyExc_AttributeError, "a node has inputs");
    return -1;
  }
  PyObject *before = node->inputs;
  Py_INCREF(inputs);
  node->inputs = inputs;
  Py_DECREF(before);
  return 0;
}

static PyObject *get_value(node_t *node, void *unused) {
  (void)unused;
  Py_INCREF(node->value);
  return node->value;
}

static int set_value(node_t *node, PyObject *value, void *unused) {
  (void)unused;
  if (value == NULL) {
    PyErr_SetString(PyExc_AttributeError, "a node that is not computed has the value None");
    return -1;
  }
  PyObject *before = node->value;
  Py_INCREF(value);
  node->value = value;
  Py_DECREF(before);
  return 0;
}

static PyObject *attribute(PyObject *one, const char *name) {
  return one == Py_None ? PyUnicode_FromString("leaf") : PyObject_GetAttrString(one, name);
}

static PyObject *node_repr(node_t *node) {
  PyObject *source = attribute(node->op, "name"), *text = NULL;
  PyObject *dtype = PyObject_GetAttrString(node->spec, "dtype");
  PyObject *kind = dtype != NULL ? PyObject_GetAttrString(dtype, "name") : NULL;
  PyObject *shape = PyObject_GetAttrString(node->spec, "shape");
  if (source != NULL && kind != NULL && shape != NULL) {
    text = PyUnicode_FromFormat("<node %lld: %S %S %S>", node->number, source, kind, shape);
  }
  Py_XDECREF(source);
  Py_XDECREF(dtype);
  Py_XDECREF(kind);
  Py_XDECREF(shape);
  return text;
}

static PyMemberDef members[] = {
    {"op", T_OBJECT, offsetof(node_t, op), READONLY, NULL},
    {"params", T_OBJECT, offsetof(node_t, params), READONLY, NULL},
    {"spec", T_OBJECT, offsetof(node_t, spec), READONLY, NULL},
    {"leaf", T_OBJECT, offsetof(node_t, leaf), 0, NULL},
    {"undo", T_OBJECT, offsetof(node_t, undo), 0, NULL},
    {"again", T_OBJECT_EX, offsetof(node_t, again), 0, NULL},
    {"hooks", T_OBJECT_EX, offsetof(node_t, hooks), 0, NULL},
    {"number", T_LONGLONG, offsetof(node_t, number), READONLY, NULL},
    {"owners", T_INT, offsetof(node_t, owners), 0, NULL},
    {"needs_grad", T_BOOL, offsetof(node_t, needs_grad), 0, NULL},
    {"is_released", T_BOOL, offsetof(node_t, is_released), 0, NULL},
    {0},
};

static PyGetSetDef properties[] = {
    {"inputs", (getter)get_inputs, (setter)set_inputs, NULL, NULL},
    {"value", (getter)get_value, (setter)set_value, NULL, NULL},
    {"shape", (getter)of_spec, NULL, NULL, "shape"},
    {"dtype", (getter)of_spec, NULL, NULL, "dtype"},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_new, node_new},
    {Py_tp_dealloc, node_dealloc},
    {Py_tp_traverse, node_traverse},
    {Py_tp_clear, node_clear},
    {Py_tp_repr, node_repr},
    {Py_tp_members, members},
    {Py_tp_getset, properties},
    {Py_tp_doc, "A value: known, or what an operation makes of others; see shmgpu.ops.graph."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "shmgpu._graph.Node",
    .basicsize = sizeof(node_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int shmi_add_node(PyObject *module) {
  PyObject *type = PyType_FromSpec(&spec);
  if (type == NULL) return -1;
  shmi_known.node = (PyTypeObject *)type;
  Py_INCREF(type);
  return PyModule_AddObject(module, "Node", type);
}
