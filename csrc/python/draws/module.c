/* module -- shmgpu._draws as Python sees it: numbers into memory whose address is given.
 *
 * Python's lock is let go for many numbers. Owns: the arguments. Must never: touch the memory of
 * what it refuses. See numbers.h. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python/draws/numbers.h"

enum { MANY = 4096 }; /* take microseconds, and others can use them */

static PyObject *fill(PyObject *module, PyObject *given) {
  (void)module;
  int distribution;
  unsigned long long seed, address;
  Py_ssize_t n;
  if (!PyArg_ParseTuple(given, "iKKn:fill", &distribution, &seed, &address, &n)) return NULL;
  if (distribution < 0 || distribution >= SHMI_DISTRIBUTIONS || n < 0) {
    PyErr_SetString(PyExc_ValueError, "fill: the distribution is 0 or 1, and the count at least 0");
    return NULL;
  }
  float *out = (float *)(uintptr_t)address;
  if (n < MANY) {
    shmi_draw(distribution, seed, out, (size_t)n);
  } else {
    Py_BEGIN_ALLOW_THREADS;
    shmi_draw(distribution, seed, out, (size_t)n);
    Py_END_ALLOW_THREADS;
  }
  Py_RETURN_NONE;
}

/* use(width): for tests. */
static PyObject *use(PyObject *module, PyObject *given) {
  (void)module;
  const long width = PyLong_AsLong(given);
  if (width == -1 && PyErr_Occurred()) return NULL;
  if (width < 0 || width > shmi_draw_widest()) {
    PyErr_SetString(PyExc_ValueError, "use: this machine has no loops of that width");
    return NULL;
  }
  shmi_draw_use((int)width);
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"fill", fill, METH_VARARGS, "fill(distribution, seed, address, n): draw n float32 numbers."},
    {"use", use, METH_O, "use(width): loops of that width, 0 to WIDEST, which is used by itself."},
    {0},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "shmgpu._draws",
    .m_doc = "Random numbers that follow from a seed; for shmgpu.ops.drawing.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__draws(void);
PyMODINIT_FUNC PyInit__draws(void) {
  shmi_draw_use(shmi_draw_widest());
  PyObject *module = PyModule_Create(&definition);
  if (module != NULL && PyModule_AddIntConstant(module, "WIDEST", shmi_draw_widest())) {
    Py_CLEAR(module);
  }
  return module;
}
