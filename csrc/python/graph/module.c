/* module -- shmgpu._graph as Python sees it. See graph.h. */
#include "python/graph/graph.h"

known_t shmi_known;

/* bind(scalar, grad_mode): the type of plain numbers' values, and the grad mode of this thread. */
static PyObject *bind(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *scalar, *grad_mode;
  if (!PyArg_UnpackTuple(given, "bind", 2, 2, &scalar, &grad_mode)) return NULL;
  Py_INCREF(scalar);
  Py_INCREF(grad_mode);
  Py_XDECREF(shmi_known.scalar);
  Py_XDECREF(shmi_known.grad_mode);
  shmi_known.scalar = scalar;
  shmi_known.grad_mode = grad_mode;
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_VARARGS, "What it must know of Python's side."},
    {"apply", (PyCFunction)(void (*)(void))shmi_apply, METH_FASTCALL, "Record an operation."},
    {"next_number", shmi_next_number, METH_NOARGS, "A number that no node has."},
    {"needed", shmi_needed, METH_O, "What has to be computed for these nodes, inputs first."},
    {"ordered", shmi_ordered, METH_VARARGS, "What the roots' gradients flow through."},
    {"release", shmi_release, METH_O, "Their gradients were taken."},
    {"structure", shmi_structure, METH_VARARGS, "What makes two graphs equal for gradients."},
    {"draft", shmi_draft, METH_VARARGS, "A program's structure, and what it is given."},
    {"places", shmi_places, METH_VARARGS, "A draft's key."},
    {"in_hand", shmi_in_hand, METH_VARARGS, "What somebody knows besides a draft."},
    {"unneeded", shmi_unneeded, METH_VARARGS, "What nobody knows besides a draft."},
    {0},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "shmgpu._graph",
    .m_doc = "Nodes of recorded graphs, and the walks over them; for shmgpu.ops and shmgpu.tensors.",
    .m_size = -1,
    .m_methods = functions,
};

static bool intern_names(void) {
  shmi_known.gradients = PyUnicode_InternFromString("gradients");
  shmi_known.enabled = PyUnicode_InternFromString("enabled");
  shmi_known.number = PyUnicode_InternFromString("number");
  shmi_known.rule = PyUnicode_InternFromString("rule");
  return shmi_known.gradients && shmi_known.enabled && shmi_known.number && shmi_known.rule;
}

PyMODINIT_FUNC PyInit__graph(void);
PyMODINIT_FUNC PyInit__graph(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module != NULL &&
      (!intern_names() || shmi_add_node(module) || shmi_add_template(module))) {
    Py_CLEAR(module);
  }
  return module;
}
