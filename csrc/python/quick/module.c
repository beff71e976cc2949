/* module -- shmgpu._quick as Python sees it. See quick.h. */
#include "python/quick/quick.h"

quick_t shmi_quick;

/* bind(ndarray, repeat, resubmit, is_near, await_reply, put_back, is_lost, count_bytes): NumPy's
 * type, and where functions of the core are. */
static PyObject *bind(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *ndarray;
  unsigned long long repeat, resubmit, is_near, await_reply, put_back, is_lost, count_bytes;
  if (!PyArg_ParseTuple(given, "O!KKKKKKK", &PyType_Type, &ndarray, &repeat, &resubmit, &is_near,
                        &await_reply, &put_back, &is_lost, &count_bytes)) {
    return NULL;
  }
  PyTypeObject *before = shmi_quick.ndarray;
  shmi_quick.ndarray = (PyTypeObject *)Py_NewRef(ndarray);
  Py_XDECREF(before);
  shmi_quick.repeat =
      (int (*)(const shm_repeat_t *, const uint64_t *, uint64_t))(uintptr_t)repeat;
  shmi_quick.resubmit = (int (*)(const shm_repeat_t *, const uint64_t *, uint64_t, uint64_t,
                                 uint64_t *))(uintptr_t)resubmit;
  shmi_quick.is_near = (int (*)(uint32_t, uint64_t))(uintptr_t)is_near;
  shmi_quick.await_reply =
      (int (*)(uint32_t, uint64_t, uint64_t, int, shm_reply_t *))(uintptr_t)await_reply;
  shmi_quick.put_back = (void (*)(uint32_t, const shm_reply_t *))(uintptr_t)put_back;
  shmi_quick.is_lost = (int (*)(void))(uintptr_t)is_lost;
  shmi_quick.count_bytes = (void (*)(int, uint64_t))(uintptr_t)count_bytes;
  Py_RETURN_NONE;
}

/* use(port, base, end): calls go through this one from now on, whose arena lies there; None: all go
 * through Python. */
static PyObject *use(PyObject *module, PyObject *given) {
  PyObject *port;
  unsigned long long base, end;
  if (!PyArg_ParseTuple(given, "OKK", &port, &base, &end)) return NULL;
  PyObject *type = PyObject_GetAttrString(module, "QuickPort");
  int is_port = type != NULL ? PyObject_IsInstance(port, type) : -1;
  Py_XDECREF(type);
  if (is_port < 0) return NULL;
  quick_port_t *before = shmi_quick.port;
  shmi_quick.port = is_port ? (quick_port_t *)Py_NewRef(port) : NULL;
  shmi_quick.base = base;
  shmi_quick.end = end;
  Py_XDECREF((PyObject *)before);
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_VARARGS, "What it must know of Python's side."},
    {"use", use, METH_VARARGS, "The port that calls go through, or None."},
    {"know_tensor", shmi_know_tensor, METH_VARARGS, "torch's type."},
    {"find", shmi_find, METH_VARARGS, "Which of these signatures such arguments have."},
    {"submit", shmi_submit, METH_VARARGS, "Sends a call like an earlier one."},
    {"start", (PyCFunction)(void (*)(void))shmi_start, METH_FASTCALL, "The same; gives its future."},
    {"start_awaited", (PyCFunction)(void (*)(void))shmi_start_awaited, METH_FASTCALL,
     "The same, for the running event loop."},
    {"result", shmi_future_result, METH_O, "Of a future, once its call has ended as expected."},
    {"await_end", shmi_await_end, METH_VARARGS, "Waits for its end."},
    {"read_alone", shmi_read_alone, METH_VARARGS, "Has whoever awaits the only call go on."},
    {"settle", shmi_settle, METH_VARARGS, "Reads its reply, where it ended as expected."},
    {"know_ticket", shmi_know_ticket, METH_VARARGS, "Python's tickets."},
    {"know_ends", shmi_know_ends, METH_VARARGS, "What a future says that has ended."},
    {"know_loop", shmi_know_loop, METH_VARARGS, "The event loop that calls."},
    {"set_writeable", shmi_set_writeable, METH_VARARGS, "That an array may or may not be written to."},
    {"reads_array", shmi_reads_array, METH_VARARGS, "Whether it sees these fields of an array."},
    {0},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "shmgpu._quick",
    .m_doc = "Calls like earlier ones, from arguments to result; for shmgpu.child.quick.",
    .m_size = -1,
    .m_methods = functions,
};

static bool intern_names(void) {
  const struct {
    PyObject **into;
    const char *name;
  } names[] = {
      {&shmi_quick.in_python, "call_in_python"},
      {&shmi_quick.renew, "renew"},
      {&shmi_quick.stage, "stage"},
      {&shmi_quick.set_values, "set_values"},
      {&shmi_quick.read, "read"},
      {&shmi_quick.go_on, "go_on_prepared"},
      {&shmi_quick.finish, "finish_prepared"},
      {&shmi_quick.tidy, "_tidy"},
      {&shmi_quick.poll, "poll"},
      {&shmi_quick.pump, "pump"},
      {&shmi_quick.start_reader, "_start_reader"},
      {&shmi_quick.append, "append"},
      {&shmi_quick.view, "view"},
      {&shmi_quick.numpy, "numpy"},
      {&shmi_quick.storage, "untyped_storage"},
      {&shmi_quick.value_bytes, "value_bytes"},
      {&shmi_quick.addresses, "addresses"},
      {&shmi_quick.result, "result"},
      {&shmi_quick.out, "out"},
      {&shmi_quick.offered, "offered"},
      {&shmi_quick.data, "data"},
      {&shmi_quick.requires_grad, "requires_grad"},
      {&shmi_quick.is_neg, "is_neg"},
      {&shmi_quick.is_conj, "is_conj"},
      {&shmi_quick.waiting, "waiting"},
      {&shmi_quick.loop_ready, "_ready"},
      {&shmi_quick.loop_timers, "_scheduled"},
      {&shmi_quick.loop_debug, "_debug"},
      {&shmi_quick.loop_stopping, "_stopping"},
      {&shmi_quick.loop_factory, "_task_factory"},
      {&shmi_quick.timer_when, "_when"},
      {&shmi_quick.looks, "looks"},
      {&shmi_quick.call_soon, "call_soon"},
      {&shmi_quick.context, "context"},
      {&shmi_quick.run, "run"},
      {&shmi_quick.give_up, "give_up"},
      {&shmi_quick.steps, "steps"},
  };
  for (size_t at = 0; at < sizeof names / sizeof *names; at++) {
    *names[at].into = PyUnicode_InternFromString(names[at].name);
    if (*names[at].into == NULL) return false;
  }
  return true;
}

PyMODINIT_FUNC PyInit__quick(void);
PyMODINIT_FUNC PyInit__quick(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module != NULL &&
      (!intern_names() || shmi_add_call(module) < 0 || shmi_add_ready(module) < 0 ||
       shmi_add_ticket(module) < 0 || shmi_add_signature(module) < 0 ||
       shmi_add_known(module) < 0 || shmi_add_future(module) < 0 || shmi_add_wake(module) < 0 ||
       PyModule_AddIntConstant(module, "NDARRAY_BYTES", (long)shmi_array_bytes()) < 0)) {
    Py_CLEAR(module);
  }
  return module;
}
