/* walks -- what a message must compute, and what makes two graphs equal for their gradients.
 * See graph.h.
 */
#include "python/graph/graph.h"

static bool push_new(nodes_t *nodes, node_t *node, uint64_t mark) {
  if (node->visited == mark) return true;
  node->visited = mark;
  return shmi_push(nodes, node);
}

static PyObject *sorted_list(nodes_t *nodes, bool is_sound) {
  PyObject *list = NULL;
  if (is_sound) {
    shmi_sort(nodes);
    list = shmi_listed(nodes);
  }
  shmi_free(nodes);
  return list;
}

/* needed(roots): what has to be computed for these, inputs first. */
PyObject *shmi_needed(PyObject *module, PyObject *roots) {
  (void)module;
  nodes_t found = {0};
  const uint64_t mark = shmi_mark();
  bool is_sound = PyList_Check(roots);
  for (Py_ssize_t at = 0; is_sound && at < PyList_Size(roots); at++) {
    PyObject *one = PyList_GetItem(roots, at);
    is_sound = shmi_is_node(one);
    if (is_sound && !shmi_is_computed((node_t *)one)) {
      is_sound = push_new(&found, (node_t *)one, mark);
    }
  }
  if (!is_sound && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "needed: a list of nodes");
  for (size_t next = 0; is_sound && next < found.count; next++) {
    const node_t *node = found.items[next];
    const Py_ssize_t count = shmi_count(node);
    for (Py_ssize_t at = 0; is_sound && at < count; at++) {
      node_t *one = shmi_input(node, at);
      if (!shmi_is_computed(one)) is_sound = push_new(&found, one, mark);
    }
  }
  return sorted_list(&found, is_sound);
}

/* ordered(roots, text): the nodes that the roots' gradients flow through, inputs first.
 * RuntimeError with the text if one of them was released. */
PyObject *shmi_ordered(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *roots, *text;
  if (!PyArg_UnpackTuple(given, "ordered", 2, 2, &roots, &text)) return NULL;
  PyObject *listed = PySequence_List(roots);
  if (listed == NULL) return NULL;
  nodes_t found = {0};
  const uint64_t mark = shmi_mark();
  bool is_sound = true;
  for (Py_ssize_t at = 0; is_sound && at < PyList_Size(listed); at++) {
    PyObject *one = PyList_GetItem(listed, at);
    is_sound = shmi_is_node(one);
    if (!is_sound) PyErr_SetString(PyExc_TypeError, "ordered: nodes");
    if (is_sound && ((node_t *)one)->needs_grad) is_sound = push_new(&found, (node_t *)one, mark);
  }
  for (size_t next = 0; is_sound && next < found.count; next++) {
    const node_t *node = found.items[next];
    if (node->leaf != Py_None) continue;
    if (node->is_released) {
      PyErr_SetObject(PyExc_RuntimeError, text);
      is_sound = false;
      break;
    }
    const Py_ssize_t count = shmi_count(node);
    for (Py_ssize_t at = 0; is_sound && at < count; at++) {
      node_t *one = shmi_input(node, at);
      if (one->needs_grad) is_sound = push_new(&found, one, mark);
    }
  }
  Py_DECREF(listed);
  return sorted_list(&found, is_sound);
}

/* release(order): mark nodes whose gradients were taken and will not be taken again. */
PyObject *shmi_release(PyObject *module, PyObject *order) {
  (void)module;
  PyObject *empty = PyTuple_New(0), *inputs = PyList_New(0);
  bool is_sound = empty != NULL && inputs != NULL && PyList_Check(order);
  for (Py_ssize_t at = 0; is_sound && at < PyList_Size(order); at++) {
    node_t *node = (node_t *)PyList_GetItem(order, at);
    if (!shmi_is_node((PyObject *)node) || node->leaf != Py_None) continue;
    node->is_released = 1;
    if (shmi_is_computed(node) && shmi_count(node)) {
      is_sound = PyList_Append(inputs, node->inputs) == 0; /* let go of after the walk */
      if (is_sound) {
        Py_DECREF(node->inputs); /* the list has one more */
        Py_INCREF(empty);
        node->inputs = empty;
      }
    }
  }
  Py_XDECREF(empty);
  Py_XDECREF(inputs);
  if (!is_sound) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "release: a list of nodes");
    return NULL;
  }
  Py_RETURN_NONE;
}

/* ---- structure ---------------------------------------------------------------------------- */

typedef struct {
  PyObject *key; /* a list */
  nodes_t given;
  uint64_t mark;
  bool is_plain; /* only rules decide: no hook, no checkpoint */
} structure_t;

static bool add(structure_t *to, PyObject *word) {
  return PyList_Append(to->key, word) == 0;
}

static bool add_place(structure_t *to, const node_t *node) {
  PyObject *place = PyLong_FromLong(node->at);
  const bool is_sound = place != NULL && add(to, place);
  Py_XDECREF(place);
  return is_sound;
}

static bool take_place(structure_t *to, node_t *node) {
  node->visited = to->mark;
  node->at = (int)to->given.count;
  return shmi_push(&to->given, node);
}

/* What a rule may ask of a number that was given: whether it is 0. */
static PyObject *kind_of(const node_t *node) {
  if (!shmi_is_scalar(node)) return Py_None;
  PyObject *number = PyObject_GetAttr(node->value, shmi_known.number);
  const int is_so = number != NULL ? PyObject_IsTrue(number) : -1;
  Py_XDECREF(number);
  return is_so < 0 ? NULL : is_so ? Py_True : Py_False;
}

static bool put(structure_t *to, PyObject *one) {
  if (!shmi_is_node(one)) {
    PyErr_SetString(PyExc_TypeError, "structure: nodes");
    return false;
  }
  node_t *node = (node_t *)one;
  if (node->visited == to->mark) return add_place(to, node);
  PyObject *kind = kind_of(node);
  return kind != NULL && take_place(to, node) && add(to, node->spec) && add(to, kind);
}

static bool put_step(structure_t *to, node_t *node) {
  if (node->leaf != Py_None || node->op == Py_None) {
    return add(to, node->spec) && add(to, node->leaf != Py_None ? Py_True : Py_False) &&
           take_place(to, node);
  }
  to->is_plain = to->is_plain && node->again == NULL && node->hooks == NULL;
  bool is_sound = add(to, node->op) && add(to, node->params);
  const Py_ssize_t count = shmi_count(node);
  for (Py_ssize_t at = 0; is_sound && at < count; at++) {
    is_sound = put(to, (PyObject *)shmi_input(node, at));
  }
  return is_sound && take_place(to, node);
}

static bool put_all(structure_t *to, PyObject *order, PyObject *outputs, PyObject *seeds,
                    PyObject *only) {
  bool is_sound = true;
  for (Py_ssize_t at = 0; is_sound && at < PyList_Size(order); at++) {
    PyObject *one = PyList_GetItem(order, at);
    is_sound = shmi_is_node(one) && put_step(to, (node_t *)one);
  }
  is_sound = is_sound && add(to, Py_None);
  for (Py_ssize_t at = 0; is_sound && at < PyList_Size(outputs); at++) {
    PyObject *seed = PyList_GetItem(seeds, at);
    is_sound = seed != NULL && put(to, PyList_GetItem(outputs, at)) &&
               (seed == Py_None ? add(to, Py_None) : put(to, seed));
  }
  if (only == Py_None) return is_sound;
  is_sound = is_sound && add(to, Py_None);
  for (Py_ssize_t at = 0; is_sound && at < PyList_Size(only); at++) {
    const node_t *one = (node_t *)PyList_GetItem(only, at);
    is_sound = shmi_is_node((PyObject *)one);
    if (is_sound && one->visited == to->mark) is_sound = add_place(to, one);
  }
  return is_sound;
}

/* structure(order, outputs, seeds, only): (key, given), a key of all that the backward pass looks
 * at and the nodes that it meets. None if more than rules decide what it does. All but `only`,
 * which may be None, are lists. */
PyObject *shmi_structure(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *order, *outputs, *seeds, *only, *result = NULL;
  if (!PyArg_UnpackTuple(given, "structure", 4, 4, &order, &outputs, &seeds, &only)) return NULL;
  if (!PyList_Check(order) || !PyList_Check(outputs) || !PyList_Check(seeds) ||
      (only != Py_None && !PyList_Check(only))) {
    PyErr_SetString(PyExc_TypeError, "structure: lists of nodes");
    return NULL;
  }
  structure_t to = {.key = PyList_New(0), .mark = shmi_mark(), .is_plain = true};
  if (to.key != NULL && put_all(&to, order, outputs, seeds, only)) {
    if (!to.is_plain) {
      Py_DECREF(to.key);
      shmi_free(&to.given);
      Py_RETURN_NONE;
    }
    PyObject *key = PyList_AsTuple(to.key), *nodes = shmi_listed(&to.given);
    if (key != NULL && nodes != NULL) result = PyTuple_Pack(2, key, nodes);
    Py_XDECREF(key);
    Py_XDECREF(nodes);
  } else if (!PyErr_Occurred()) {
    PyErr_SetString(PyExc_TypeError, "structure: lists of nodes");
  }
  Py_XDECREF(to.key);
  shmi_free(&to.given);
  return result;
}
