/* record -- apply(): a node for an operation, and the outcomes of rules, which are remembered. See
 * graph.h. */
#include "python/graph/graph.h"

enum {
  REMEMBERED = 1 << 13, /* outcomes; a new one replaces an older one in its place */
  MOST_INPUTS = 6       /* outcomes of operations with more are not remembered here */
};

typedef struct {
  PyObject *op, *params, *spec; /* references of ours */
  PyObject *specs[MOST_INPUTS];
  Py_ssize_t count;
} outcome_t;

static outcome_t outcomes[REMEMBERED];

/* Whether that is the outcome for these; -1 with an exception. */
static int is_of(const outcome_t *known, PyObject *op, PyObject *inputs, PyObject *params,
                 Py_ssize_t count) {
  if (known->op != op || known->count != count) return 0;
  for (Py_ssize_t at = 0; at < count; at++) {
    if (known->specs[at] != ((node_t *)PyTuple_GetItem(inputs, at))->spec) return 0;
  }
  return known->params == params ? 1 : PyObject_RichCompareBool(known->params, params, Py_EQ);
}

static PyObject *ask(PyObject *op, PyObject *specs, PyObject *params) {
  PyObject *rule = PyObject_GetAttr(op, shmi_known.rule);
  if (rule == NULL) return NULL;
  PyObject *spec = PyObject_CallFunctionObjArgs(rule, specs, params, NULL);
  Py_DECREF(rule);
  return spec;
}

static PyObject *specs_of(PyObject *inputs, Py_ssize_t count) {
  PyObject *specs = PyTuple_New(count);
  for (Py_ssize_t at = 0; specs != NULL && at < count; at++) {
    PyObject *spec = ((node_t *)PyTuple_GetItem(inputs, at))->spec;
    Py_INCREF(spec);
    PyTuple_SetItem(specs, at, spec);
  }
  return specs;
}

/* The outcome's spec: a new reference, or NULL with what the rule raised. */
static PyObject *spec_of(PyObject *op, PyObject *inputs, PyObject *params, Py_ssize_t count) {
  outcome_t *known = NULL;
  if (count <= MOST_INPUTS) {
    const Py_hash_t hash = PyObject_Hash(params);
    if (hash == -1) return NULL;
    uint64_t mixed = (uint64_t)hash ^ (uint64_t)(uintptr_t)op >> 4;
    for (Py_ssize_t at = 0; at < count; at++) {
      PyObject *spec = ((node_t *)PyTuple_GetItem(inputs, at))->spec;
      mixed = mixed * 0x9E3779B97F4A7C15u + ((uint64_t)(uintptr_t)spec >> 4);
    }
    mixed *= 0x9E3779B97F4A7C15u;
    known = &outcomes[(mixed >> 40) % REMEMBERED];
    const int is_known = is_of(known, op, inputs, params, count);
    if (is_known < 0) return NULL;
    if (is_known) {
      Py_INCREF(known->spec);
      return known->spec;
    }
  }
  PyObject *specs = specs_of(inputs, count);
  if (specs == NULL) return NULL;
  PyObject *spec = ask(op, specs, params);
  if (spec != NULL && known != NULL) {
    outcome_t before = *known;
    known->op = op;
    known->params = params;
    known->spec = spec;
    known->count = count;
    Py_INCREF(op);
    Py_INCREF(params);
    Py_INCREF(spec);
    for (Py_ssize_t at = 0; at < count; at++) {
      known->specs[at] = PyTuple_GetItem(specs, at);
      Py_INCREF(known->specs[at]);
    }
    if (before.op != NULL) {
      for (Py_ssize_t at = 0; at < before.count; at++) Py_DECREF(before.specs[at]);
      Py_DECREF(before.op);
      Py_DECREF(before.params);
      Py_DECREF(before.spec);
    }
  }
  Py_DECREF(specs);
  return spec;
}

/* Whether gradients flow through an operation on such an input; -1 with an exception. */
static int has_gradients(PyObject *op) {
  PyObject *found = PyObject_GetAttr(op, shmi_known.gradients);
  if (found == NULL) return -1;
  int is_so = PyObject_IsTrue(found);
  Py_DECREF(found);
  if (is_so <= 0) return is_so;
  found = PyObject_GetAttr(shmi_known.grad_mode, shmi_known.enabled);
  if (found == NULL) return -1;
  is_so = PyObject_IsTrue(found);
  Py_DECREF(found);
  return is_so;
}

/* apply(op, inputs, params=()) */
PyObject *shmi_apply(PyObject *module, PyObject *const *given, Py_ssize_t count) {
  (void)module;
  static PyObject *none; /* no params */
  if (none == NULL && (none = PyTuple_New(0)) == NULL) return NULL;
  if (count < 2 || count > 3 || !PyTuple_Check(given[1])) {
    PyErr_SetString(PyExc_TypeError, "apply takes an operation, a tuple of nodes, and params");
    return NULL;
  }
  PyObject *op = given[0], *inputs = given[1], *params = count == 3 ? given[2] : none;
  const Py_ssize_t length = PyTuple_Size(inputs);
  bool is_open = false;
  for (Py_ssize_t at = 0; at < length; at++) {
    PyObject *one = PyTuple_GetItem(inputs, at);
    if (!shmi_is_node(one)) {
      PyErr_SetString(PyExc_TypeError, "the inputs of an operation are nodes");
      return NULL;
    }
    is_open |= ((node_t *)one)->needs_grad;
  }
  PyObject *spec = spec_of(op, inputs, params, length);
  if (spec == NULL) return NULL;
  const int needs_grad = is_open ? has_gradients(op) : 0;
  node_t *node = NULL;
  if (needs_grad >= 0) {
    Py_INCREF(inputs);
    node = shmi_node(op, inputs, params, spec, Py_None);
    if (node != NULL) node->needs_grad = (char)needs_grad;
  }
  Py_DECREF(spec);
  return (PyObject *)node;
}
