/* template -- what was recorded once, recorded again: the type Template, as nodes in a row.
 *
 * shmgpu.ops.templates makes them, and says what they may keep. See graph.h.
 */
#include "python/graph/graph.h"

#include <stdlib.h>

typedef struct {
  PyObject *op, *params, *spec, *value; /* borrowed from the template's steps */
  int *inputs;
  Py_ssize_t count;
} step_t;

typedef struct {
  PyObject_HEAD
  PyObject *steps;   /* a tuple of (op, places, params, spec, value) */
  PyObject *results; /* a tuple of places */
  step_t *parsed;
  int *places; /* of all inputs, then those of the results */
  int *wanted;
  Py_ssize_t length;
  int most; /* the greatest place that anything reads */
} template_t;

static bool parse_places(PyObject *tuple, int *into, int *most) {
  for (Py_ssize_t at = 0; at < PyTuple_Size(tuple); at++) {
    const long place = PyLong_AsLong(PyTuple_GetItem(tuple, at));
    if (place < 0 || place > INT32_MAX) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a template's places count from 0");
      return false;
    }
    into[at] = (int)place;
    if (place > *most) *most = (int)place;
  }
  return true;
}

static bool parse(template_t *made) {
  Py_ssize_t total = PyTuple_Size(made->results);
  made->length = PyTuple_Size(made->steps);
  for (Py_ssize_t at = 0; at < made->length; at++) {
    PyObject *step = PyTuple_GetItem(made->steps, at);
    if (!PyTuple_Check(step) || PyTuple_Size(step) != 5 || !PyTuple_Check(PyTuple_GetItem(step, 1))) {
      PyErr_SetString(PyExc_TypeError, "a template's step is (op, places, params, spec, value)");
      return false;
    }
    total += PyTuple_Size(PyTuple_GetItem(step, 1));
  }
  made->parsed = calloc((size_t)made->length + 1, sizeof *made->parsed);
  made->places = calloc((size_t)total + 1, sizeof *made->places);
  if (made->parsed == NULL || made->places == NULL) {
    PyErr_NoMemory();
    return false;
  }
  int *next = made->places;
  made->most = -1;
  for (Py_ssize_t at = 0; at < made->length; at++) {
    PyObject *step = PyTuple_GetItem(made->steps, at), *inputs = PyTuple_GetItem(step, 1);
    step_t *parsed = &made->parsed[at];
    parsed->op = PyTuple_GetItem(step, 0);
    parsed->params = PyTuple_GetItem(step, 2);
    parsed->spec = PyTuple_GetItem(step, 3);
    parsed->value = PyTuple_GetItem(step, 4);
    parsed->inputs = next;
    parsed->count = PyTuple_Size(inputs);
    int most = -1;
    if (!parse_places(inputs, next, &most)) return false;
    /* A step reads the given values and earlier steps: `most` less the earlier steps is a given
     * value. */
    if (most - (int)at > made->most) made->most = most - (int)at;
    next += parsed->count;
  }
  made->wanted = next;
  int most = -1;
  if (!parse_places(made->results, next, &most)) return false;
  if (most - (int)made->length > made->most) made->most = most - (int)made->length;
  return true;
}

static PyObject *template_new(PyTypeObject *type, PyObject *given, PyObject *named) {
  PyObject *steps, *results;
  if (named != NULL || !PyArg_UnpackTuple(given, "Template", 2, 2, &steps, &results)) {
    if (named != NULL) PyErr_SetString(PyExc_TypeError, "Template takes no named arguments");
    return NULL;
  }
  const allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  template_t *made = (template_t *)alloc(type, 0);
  if (made == NULL) return NULL;
  made->steps = PySequence_Tuple(steps);
  made->results = PySequence_Tuple(results);
  if (made->steps == NULL || made->results == NULL || !parse(made)) Py_CLEAR(made);
  return (PyObject *)made;
}

static void template_dealloc(template_t *made) {
  PyTypeObject *type = Py_TYPE(made);
  free(made->parsed);
  free(made->places);
  Py_XDECREF(made->steps);
  Py_XDECREF(made->results);
  const freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(made);
  Py_DECREF(type);
}

static PyObject *inputs_of(const step_t *step, const nodes_t *nodes) {
  PyObject *inputs = PyTuple_New(step->count);
  for (Py_ssize_t at = 0; inputs != NULL && at < step->count; at++) {
    PyObject *one = (PyObject *)nodes->items[step->inputs[at]];
    Py_INCREF(one);
    PyTuple_SetItem(inputs, at, one);
  }
  return inputs;
}

static bool take_given(nodes_t *nodes, PyObject *given) {
  for (Py_ssize_t at = 0; at < PyList_Size(given); at++) {
    PyObject *one = PyList_GetItem(given, at);
    if (!shmi_is_node(one)) {
      PyErr_SetString(PyExc_TypeError, "a template is given nodes");
      return false;
    }
    if (!shmi_push(nodes, (node_t *)one)) return false;
  }
  return true;
}

/* instantiate(given): the results, of nodes of the same structure. */
static PyObject *instantiate(template_t *self, PyObject *nodes_given) {
  PyObject *given = PySequence_List(nodes_given), *results = NULL;
  if (given == NULL) return NULL;
  nodes_t nodes = {0};
  bool is_sound = take_given(&nodes, given);
  if (is_sound && self->most >= (int)nodes.count) {
    PyErr_SetString(PyExc_ValueError, "a template needs more nodes than it was given");
    is_sound = false;
  }
  for (Py_ssize_t at = 0; is_sound && at < self->length; at++) {
    const step_t *step = &self->parsed[at];
    PyObject *inputs = inputs_of(step, &nodes);
    node_t *made = inputs == NULL ? NULL
                                  : shmi_node(step->op, inputs, step->params, step->spec, step->value);
    is_sound = made != NULL && shmi_push(&nodes, made);
    Py_XDECREF((PyObject *)made);
  }
  const Py_ssize_t wanted = PyTuple_Size(self->results);
  if (is_sound) results = PyList_New(wanted);
  for (Py_ssize_t at = 0; results != NULL && at < wanted; at++) {
    PyObject *one = (PyObject *)nodes.items[self->wanted[at]];
    Py_INCREF(one);
    PyList_SetItem(results, at, one);
  }
  shmi_free(&nodes);
  Py_DECREF(given);
  return results;
}

static PyObject *get_steps(template_t *self, void *unused) {
  (void)unused;
  Py_INCREF(self->steps);
  return self->steps;
}

static PyObject *get_results(template_t *self, void *unused) {
  (void)unused;
  Py_INCREF(self->results);
  return self->results;
}

static PyMethodDef methods[] = {
    {"instantiate", (PyCFunction)instantiate, METH_O, "The results, of nodes of that structure."},
    {0},
};

static PyGetSetDef properties[] = {
    {"steps", (getter)get_steps, NULL, NULL, NULL},
    {"results", (getter)get_results, NULL, NULL, NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_new, template_new},
    {Py_tp_dealloc, template_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_doc, "Operations on nodes that are known by their places; see shmgpu.ops.templates."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "shmgpu._graph.Template",
    .basicsize = sizeof(template_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

int shmi_add_template(PyObject *module) {
  PyObject *type = PyType_FromSpec(&spec);
  return type == NULL ? -1 : PyModule_AddObject(module, "Template", type);
}
