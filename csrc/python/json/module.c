/* module -- shmgpu._json as Python sees it: text to numbers in memory, and back.
 *
 * Python's lock is let go for many numbers. Owns: the arguments. Must never: refuse a number in
 * words, which shmgpu/serve/protocol/datatypes.py does. See json.h. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python/json/json.h"

enum { MANY = 1024 }; /* take ten microseconds, and others can use them */
enum { MOST_AXES = 64 }; /* as of NumPy */

/* The memory of a bytes-like object, which must not change as long as it is used. Both are of the
 * stable ABI, but headers since 3.13 do not name them. */
PyAPI_FUNC(int) PyObject_AsReadBuffer(PyObject *, const void **, Py_ssize_t *);
PyAPI_FUNC(int) PyObject_AsWriteBuffer(PyObject *, void **, Py_ssize_t *);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static bool is_kind(int kind, int first) {
  if (kind >= first && kind < SHMI_JSON_KINDS) return true;
  PyErr_SetString(PyExc_ValueError, "numbers of that kind are not read or written here");
  return false;
}

/* The number of axes; 0: no shape of n numbers, of which an exception tells. */
static int shape_of(PyObject *given, size_t n, size_t shape[MOST_AXES]) {
  const Py_ssize_t axes = PyTuple_Size(given);
  for (Py_ssize_t axis = 0; axis < axes && axis < MOST_AXES; axis++) {
    shape[axis] = PyLong_AsSize_t(PyTuple_GetItem(given, axis));
    if (PyErr_Occurred()) return 0;
    if (shape[axis] == 0 || n % shape[axis] != 0) break;
    n /= shape[axis];
    if (n == 1 && axis + 1 == axes) return (int)axes;
  }
  PyErr_SetString(PyExc_ValueError, "read: the memory is not that of numbers of this shape");
  return 0;
}

static PyObject *read_array(PyObject *module, PyObject *given) {
  (void)module;
  int kind;
  PyObject *from, *into, *given_shape;
  Py_ssize_t start, stop, length, size;
  const void *text;
  void *out;
  if (!PyArg_ParseTuple(given, "iOnnOO!:read", &kind, &from, &start, &stop, &into,
                        &PyTuple_Type, &given_shape)) {
    return NULL;
  }
  if (!is_kind(kind, 0) || PyObject_AsReadBuffer(from, &text, &length) != 0 ||
      PyObject_AsWriteBuffer(into, &out, &size) != 0) {
    return NULL;
  }
  if (start < 0 || start > stop || stop > length) {
    PyErr_SetString(PyExc_ValueError, "read: there is no such part of the text");
    return NULL;
  }
  const char *at = (const char *)text + start, *end = (const char *)text + stop;
  const size_t n = (size_t)size / shmi_json_size(kind);
  size_t shape[MOST_AXES];
  const int axes = shape_of(given_shape, n, shape);
  if (axes == 0) return NULL;
  bool is_read;
  if (n < MANY) {
    is_read = shmi_json_read(kind, at, end, out, shape, axes);
  } else {
    Py_BEGIN_ALLOW_THREADS;
    is_read = shmi_json_read(kind, at, end, out, shape, axes);
    Py_END_ALLOW_THREADS;
  }
  return PyBool_FromLong(is_read);
}

static PyObject *write_array(PyObject *module, PyObject *given) {
  (void)module;
  int kind;
  PyObject *from;
  Py_ssize_t size;
  const void *numbers;
  if (!PyArg_ParseTuple(given, "iO:write", &kind, &from)) return NULL;
  if (!is_kind(kind, SHMI_JSON_FLOAT32) || PyObject_AsReadBuffer(from, &numbers, &size) != 0) {
    return NULL;
  }
  const size_t n = (size_t)size / shmi_json_size(kind);
  char *out = PyMem_Malloc(SHMI_JSON_ROOM(n));
  if (out == NULL) return PyErr_NoMemory();
  size_t length;
  if (n < MANY) {
    length = shmi_json_write(kind, numbers, n, out);
  } else {
    Py_BEGIN_ALLOW_THREADS;
    length = shmi_json_write(kind, numbers, n, out);
    Py_END_ALLOW_THREADS;
  }
  PyObject *written = PyBytes_FromStringAndSize(out, (Py_ssize_t)length);
  PyMem_Free(out);
  return written;
}

static PyMethodDef functions[] = {
    {"read", read_array, METH_VARARGS,
     "read(kind, text, start, stop, into, shape): whether a part of the text was such an array."},
    {"write", write_array, METH_VARARGS, "write(kind, numbers): an array of floats."},
    {0},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "shmgpu._json",
    .m_doc = "Arrays of numbers as JSON; for shmgpu.serve.protocol.datatypes.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__json(void);
PyMODINIT_FUNC PyInit__json(void) {
  static const struct {
    const char *name;
    long value;
  } kinds[] = {
      {"INT8", SHMI_JSON_INT8},       {"INT16", SHMI_JSON_INT16},
      {"INT32", SHMI_JSON_INT32},     {"INT64", SHMI_JSON_INT64},
      {"UINT8", SHMI_JSON_UINT8},     {"UINT16", SHMI_JSON_UINT16},
      {"UINT32", SHMI_JSON_UINT32},   {"UINT64", SHMI_JSON_UINT64},
      {"FLOAT32", SHMI_JSON_FLOAT32}, {"FLOAT64", SHMI_JSON_FLOAT64},
  };
  if (!shmi_json_prepare()) return PyErr_NoMemory();
  PyObject *module = PyModule_Create(&definition);
  for (size_t i = 0; module != NULL && i < sizeof kinds / sizeof *kinds; i++) {
    if (PyModule_AddIntConstant(module, kinds[i].name, kinds[i].value)) Py_CLEAR(module);
  }
  return module;
}
