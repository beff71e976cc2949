/* module -- shmgpu._http2 as Python sees it; there is none where there is no libnghttp2. See
 * http2.h. */
#include "python/http2/http2.h"

enum { FOR_WRITING = 0x200 }; /* PyBUF_WRITE, which the limited API of 3.10 does not name */

/* limit(bytes): how many may lie here in all that nobody wants yet. */
static PyObject *limit(PyObject *module, PyObject *given) {
  (void)module;
  const size_t most = PyLong_AsSize_t(given);
  if (most == (size_t)-1 && PyErr_Occurred()) return NULL;
  shmi_raw_most = most;
  Py_RETURN_NONE;
}

/* limit_coming(bytes): how many of messages that are wanted and not whole. */
static PyObject *limit_coming(PyObject *module, PyObject *given) {
  (void)module;
  const size_t most = PyLong_AsSize_t(given);
  if (most == (size_t)-1 && PyErr_Occurred()) return NULL;
  shmi_coming_most = most;
  Py_RETURN_NONE;
}

/* coming(): how many do. */
static PyObject *coming(PyObject *module, PyObject *unused) {
  (void)module;
  (void)unused;
  return PyLong_FromSize_t(shmi_coming_total);
}

/* unwanted(): how many lie here that nobody wants yet. */
static PyObject *unwanted(PyObject *module, PyObject *unused) {
  (void)module;
  (void)unused;
  return PyLong_FromSize_t(shmi_raw_total);
}

static PyMethodDef functions[] = {
    {"limit", limit, METH_O, "How many bytes may lie here that nobody wants yet."},
    {"unwanted", unwanted, METH_NOARGS, "How many do."},
    {"limit_coming", limit_coming, METH_O, "How many bytes may lie here of messages not whole."},
    {"coming", coming, METH_NOARGS, "How many do."},
    {0},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "shmgpu._http2",
    .m_doc = "HTTP/2 connections of a gRPC server, by libnghttp2; for shmgpu.serve.frontend.",
    .m_size = -1,
    .m_methods = functions,
};

static int add_numbers(PyObject *module) {
  static const struct {
    const char *name;
    long value;
  } numbers[] = {
      {"OPENED", OPENED},         {"MESSAGE", MESSAGE}, {"ENDED", ENDED},
      {"COMPRESSED", COMPRESSED}, {"BROKEN", BROKEN},   {"TOO_LARGE", TOO_LARGE},
      {"LONG_HEAD", LONG_HEAD},   {"NO_ROOM", NO_ROOM},
  };
  for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++) {
    if (PyModule_AddIntConstant(module, numbers[at].name, numbers[at].value)) return -1;
  }
  return PyModule_AddStringConstant(module, "VERSION", shmi_nghttp2.version(0)->version_str);
}

PyMODINIT_FUNC PyInit__http2(void);
PyMODINIT_FUNC PyInit__http2(void) {
  const char *missing = shmi_find_nghttp2();
  if (missing != NULL) return PyErr_Format(PyExc_ImportError, "%s", missing);
  PyObject *module = PyModule_Create(&definition);
  PyObject *scratch =
      PyMemoryView_FromMemory((char *)shmi_scratch, SCRATCH_BYTES, FOR_WRITING);
  if (module == NULL || scratch == NULL || PyModule_AddObject(module, "scratch", scratch) ||
      add_numbers(module) || shmi_add_session(module)) {
    Py_CLEAR(module);
  }
  return module;
}
