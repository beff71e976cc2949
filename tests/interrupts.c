/* A signal handler for tests that runs at every point where CPython runs signal handlers, and acts
 * at the n-th of them. It is C, so that it makes no such points itself, and it asks for its own next
 * run: the interpreter then calls it wherever it looks for signals at all. See interrupts.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h> /* before 3.11 PyFrame_Check is there */

static struct {
  int signum;
  long long at, count; /* the point to act at; those seen */
  long long gap;       /* points from there to a second act; < 0: there is none */
  int is_armed, has_acted;
  PyObject *act;   /* what to call there; None: raise KeyboardInterrupt */
  PyObject *files; /* tuple of parts of file names: other files' points do not count */
} state;

static int counts(PyObject *frame) {
  if (!PyFrame_Check(frame)) return 0;
  PyCodeObject *code = PyFrame_GetCode((PyFrameObject *)frame);
  int found = 0;
  for (Py_ssize_t i = 0; !found && i < PyTuple_GET_SIZE(state.files); i++) {
    found = PyUnicode_Find(code->co_filename, PyTuple_GET_ITEM(state.files, i), 0,
                           PyUnicode_GET_LENGTH(code->co_filename), 1) >= 0;
  }
  Py_DECREF(code);
  return found;
}

static PyObject *handle(PyObject *module, PyObject *args) {
  (void)module;
  if (!state.is_armed) Py_RETURN_NONE;
  PyObject *frame = PyTuple_GetItem(args, 1);
  if (frame == NULL) return NULL;
  if (counts(frame) && state.count++ == state.at) {
    state.has_acted = 1;
    state.is_armed = state.gap >= 0;
    if (state.is_armed) {
      state.at += 1 + state.gap;
      state.gap = -1;
      PyErr_SetInterruptEx(state.signum);
    }
    if (state.act != NULL && state.act != Py_None) return PyObject_CallNoArgs(state.act);
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    return NULL;
  }
  PyErr_SetInterruptEx(state.signum);
  Py_RETURN_NONE;
}

static PyObject *arm(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *act, *files;
  if (!PyArg_ParseTuple(args, "iLLOO!", &state.signum, &state.at, &state.gap, &act, &PyTuple_Type,
                        &files)) {
    return NULL;
  }
  Py_INCREF(act);
  Py_XSETREF(state.act, act);
  Py_INCREF(files);
  Py_XSETREF(state.files, files);
  state.count = 0;
  state.is_armed = 1;
  state.has_acted = 0;
  PyErr_SetInterruptEx(state.signum);
  Py_RETURN_NONE;
}

/* Whether the point was reached. */
static PyObject *disarm(PyObject *module, PyObject *none) {
  (void)module, (void)none;
  state.is_armed = 0;
  Py_CLEAR(state.act);
  return PyBool_FromLong(state.has_acted);
}

static PyMethodDef methods[] = {{"handle", handle, METH_VARARGS, NULL},
                                {"arm", arm, METH_VARARGS, NULL},
                                {"disarm", disarm, METH_NOARGS, NULL},
                                {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "interrupts_c", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_interrupts_c(void) { return PyModule_Create(&module); }
