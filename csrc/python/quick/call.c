/* call -- the call itself, and the types that Python's port and function are made of. See
 * quick.h.
 *
 * Interruptions: between the reply and the result nothing is called that may run Python code, so no
 * signal handler strikes there. Before Python is asked to go on with a call that has not ended, and
 * is struck, the call is put where whoever comes next gives it up: shmgpu/child/port.py says how.
 */
#include <stddef.h>

#include "python/quick/quick.h"

#include <structmember.h>

enum { STRUCK = -1 };   /* the key in `out` that says so, as in shmgpu/child/replies.py */

/* ---- one call ------------------------------------------------------------------------------- */

/* Keeps what a helper may still write to, and what it reads, and has the port give the call up. The
 * exception stays, unless another comes. */
static void strike(quick_port_t *port, quick_call_t *ready, const quick_found_t *found) {
  PyObject *kind, *value, *trace;
  PyErr_Fetch(&kind, &value, &trace);
  PyObject *key = PyLong_FromLong(STRUCK);
  PyObject *struck = Py_BuildValue("(O(NNO)[])", ready->call, shmi_arrays_of(found),
                                   shmi_values_of(found), (PyObject *)ready);
  PyObject *done = NULL;
  if (key != NULL && struck != NULL && PyDict_SetItem(port->out, key, Py_None) == 0) {
    done = PyObject_CallMethodObjArgs(port->struck, shmi_quick.append, struck, NULL);
  }
  if (done != NULL) {
    Py_DECREF(done);
    done = PyObject_CallMethodObjArgs((PyObject *)port, shmi_quick.tidy, NULL);
  } else if (struck != NULL) {
    Py_INCREF(struck); /* no memory to note it: it must never be freed */
  }
  Py_XDECREF(key);
  Py_XDECREF(struck);
  if (done != NULL) {
    Py_DECREF(done);
    PyErr_Restore(kind, value, trace);
  } else {
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
  }
}

/* Has Python go on with a call whose wait ended otherwise than nearly all do: what its end is. */
static int go_on(quick_port_t *port, PyObject *function, quick_call_t *ready,
                 const quick_found_t *found, int status) {
  PyObject *places = shmi_addresses_of(ready, found->addresses), *number = PyLong_FromLong(status);
  PyObject *end = NULL;
  if (shmi_forget_values(ready) && places != NULL && number != NULL) {
    end = PyObject_CallMethodObjArgs((PyObject *)port, shmi_quick.go_on, function,
                                     (PyObject *)ready, places, number, NULL);
  }
  Py_XDECREF(places);
  Py_XDECREF(number);
  if (end == NULL) {
    strike(port, ready, found);
    return SHM_ESYSTEM;
  }
  status = (int)PyLong_AsLong(end);
  Py_DECREF(end);
  return status;
}

/* What Python makes of an end that is not the expected one. */
static PyObject *finish(quick_port_t *port, quick_call_t *ready, int status) {
  PyObject *end = shmi_forget_values(ready) ? PyLong_FromLong(status < 0 ? status : SHM_OK) : NULL;
  if (end == NULL) return NULL;
  PyObject *result =
      PyObject_CallMethodObjArgs((PyObject *)port, shmi_quick.finish, (PyObject *)ready, end, NULL);
  Py_DECREF(end);
  return result;
}

bool shmi_pump(quick_port_t *port) {
  if (PyObject_Size(port->queue) <= 0) return true;
  PyObject *done = PyObject_CallMethodObjArgs((PyObject *)port, shmi_quick.pump, NULL);
  Py_XDECREF(done);
  return done != NULL;
}

/* The result of a call that has ended well: as expected, or Python says what it is. */
static PyObject *result_of(quick_port_t *port, PyObject *list, quick_call_t *ready) {
  bool has_arrays = PyTuple_Size(ready->arrays) > 0;
  bool is_plain = ready->repeat->reply->value != 0;
  if (has_arrays == is_plain) return finish(port, ready, SHM_OK);
  PyObject *result = has_arrays ? shmi_result(ready) : shmi_lone_value(ready);
  if (result == NULL) return PyErr_Occurred() ? NULL : finish(port, ready, SHM_OK);
  if (PyList_Append(list, (PyObject *)ready) < 0) PyErr_Clear(); /* it is made again when asked */
  if (!shmi_pump(port)) Py_CLEAR(result);
  return result;
}

/* Sends, waits and returns the result; NULL without an exception: it is to be called through Python.
 */
static PyObject *send(quick_port_t *port, PyObject *function, PyObject *list,
                      quick_found_t *found) {
  quick_call_t *ready = shmi_take(list);
  if (ready == NULL) return NULL;
  PyObject *result = NULL;
  int status = SHM_EBAD_PARAMS;
  bool is_sent = shmi_fill(ready, found);
  if (is_sent) {
    PyThreadState *thread = PyEval_SaveThread();
    status = shmi_quick.repeat(ready->repeat, found->addresses, ready->room);
    PyEval_RestoreThread(thread);
    is_sent = status != SHM_EBAD_PARAMS || ready->repeat->reply->sequence != 0;
  }
  if (is_sent) {
    if (status < 0) status = go_on(port, function, ready, found, status);
    else status = SHM_OK; /* and the reply says what came */
    if (!PyErr_Occurred()) {
      result = status == SHM_OK ? result_of(port, list, ready) : finish(port, ready, status);
    }
  } else {
    shmi_put_back(list, ready);
  }
  Py_DECREF(ready);
  return result;
}

/* ---- a function that is called -------------------------------------------------------------- */

bool shmi_may_send(const quick_port_t *port, const PyObject *one) {
  const quick_function_t *function = (const quick_function_t *)one;
  if (port == NULL || function->plans_port == NULL || function->signatures == NULL) return false;
  if (function->plans_port != port->arguments || !PyList_Check(function->signatures)) return false;
  return !port->rejoins || !shmi_quick.is_lost();
}

static bool has_to_poll(const quick_port_t *port) {
  return port->reader == Py_None && PyDict_Size(port->out) > 0;
}

static bool has_to_look(const quick_port_t *port) {
  return port->look != Py_None || has_to_poll(port);
}

/* What Python would do before a call: false, with an exception, where one struck. */
static bool look_around(quick_port_t *port) {
  if (port->look != Py_None) {
    PyObject *done = PyObject_CallNoArgs(port->look);
    if (done == NULL) return false;
    Py_DECREF(done);
  }
  if (has_to_poll(port)) {
    PyObject *done = PyObject_CallMethodObjArgs((PyObject *)port, shmi_quick.poll, NULL);
    if (done == NULL) return false;
    Py_DECREF(done);
  }
  return true;
}

/* The call in C; NULL without an exception: it is to be called through Python. */
static PyObject *try_to_call(quick_port_t *port, quick_function_t *self, PyObject *args,
                             PyObject *named) {
  quick_found_t found;
  quick_signature_t *signature = shmi_signature_of(self->signatures, args, named, &found);
  if (signature != NULL && has_to_look(port)) {
    /* Callbacks run there: they may change what was found, or leave the broker. */
    shmi_let_go(&found);
    Py_CLEAR(signature);
    if (look_around(port) && port == shmi_quick.port && shmi_may_send(port, (PyObject *)self)) {
      signature = shmi_signature_of(self->signatures, args, named, &found);
    }
  }
  if (signature == NULL) return NULL;
  PyObject *list = Py_NewRef(signature->ready);
  PyObject *result = send(port, (PyObject *)self, list, &found);
  shmi_let_go(&found);
  Py_DECREF(list);
  Py_DECREF((PyObject *)signature);
  return result;
}

static PyObject *function_call(quick_function_t *self, PyObject *args, PyObject *named) {
  quick_port_t *port = shmi_quick.port;
  if (shmi_may_send(port, (PyObject *)self)) {
    Py_INCREF(port);
    PyObject *tried = try_to_call(port, self, args, named);
    Py_DECREF(port);
    if (tried != NULL || PyErr_Occurred()) return tried;
  }
  PyObject *call = PyObject_GetAttr((PyObject *)self, shmi_quick.in_python);
  PyObject *result = call != NULL ? PyObject_Call(call, args, named) : NULL;
  Py_XDECREF(call);
  return result;
}

static int function_traverse(quick_function_t *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(self->plans_port);
  Py_VISIT(self->signatures);
  return 0;
}

static int function_clear(quick_function_t *self) {
  Py_CLEAR(self->plans_port);
  Py_CLEAR(self->signatures);
  return 0;
}

static void function_dealloc(quick_function_t *self) {
  PyObject_GC_UnTrack(self);
  function_clear(self);
  shmi_free_object((PyObject *)self);
}

static PyMemberDef function_members[] = {
    {"plans_port", T_OBJECT, offsetof(quick_function_t, plans_port), 0, NULL},
    {"signatures", T_OBJECT, offsetof(quick_function_t, signatures), 0, NULL},
    {0},
};

static PyType_Slot function_slots[] = {
    {Py_tp_call, function_call},
    {Py_tp_dealloc, function_dealloc},
    {Py_tp_traverse, function_traverse},
    {Py_tp_clear, function_clear},
    {Py_tp_members, function_members},
    {Py_tp_doc, "What a shmgpu.functions.Function is made of."},
    {0, NULL},
};

/* ---- a port --------------------------------------------------------------------------------- */

static int port_traverse(quick_port_t *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(self->out);
  Py_VISIT(self->struck);
  Py_VISIT(self->queue);
  Py_VISIT(self->reader);
  Py_VISIT(self->closed);
  Py_VISIT(self->numbers);
  Py_VISIT(self->arguments);
  Py_VISIT(self->look);
  return 0;
}

static int port_clear(quick_port_t *self) {
  Py_CLEAR(self->out);
  Py_CLEAR(self->struck);
  Py_CLEAR(self->queue);
  Py_CLEAR(self->reader);
  Py_CLEAR(self->closed);
  Py_CLEAR(self->numbers);
  Py_CLEAR(self->arguments);
  Py_CLEAR(self->look);
  return 0;
}

static void port_dealloc(quick_port_t *self) {
  PyObject_GC_UnTrack(self);
  port_clear(self);
  shmi_free_object((PyObject *)self);
}

static PyMemberDef port_members[] = {
    {"_out", T_OBJECT_EX, offsetof(quick_port_t, out), 0, NULL},
    {"_struck", T_OBJECT_EX, offsetof(quick_port_t, struck), 0, NULL},
    {"_queue", T_OBJECT_EX, offsetof(quick_port_t, queue), 0, NULL},
    {"_reader", T_OBJECT_EX, offsetof(quick_port_t, reader), 0, NULL},
    {"_closed", T_OBJECT_EX, offsetof(quick_port_t, closed), 0, NULL},
    {"_numbers", T_OBJECT_EX, offsetof(quick_port_t, numbers), 0, NULL},
    {"arguments", T_OBJECT_EX, offsetof(quick_port_t, arguments), 0, NULL},
    {"look", T_OBJECT_EX, offsetof(quick_port_t, look), 0, NULL},
    {"rejoins", T_BOOL, offsetof(quick_port_t, rejoins), 0, NULL},
    {0},
};

static PyType_Slot port_slots[] = {
    {Py_tp_dealloc, port_dealloc},
    {Py_tp_traverse, port_traverse},
    {Py_tp_clear, port_clear},
    {Py_tp_members, port_members},
    {Py_tp_doc, "What a shmgpu.child.port.Port is made of."},
    {0, NULL},
};

/* ---- all of them ---------------------------------------------------------------------------- */

static PyType_Spec specs[] = {
    {"shmgpu._quick.QuickFunction", sizeof(quick_function_t), 0, 0, function_slots},
    {"shmgpu._quick.QuickPort", sizeof(quick_port_t), 0, 0, port_slots},
};

int shmi_add_call(PyObject *module) {
  for (size_t at = 0; at < sizeof specs / sizeof *specs; at++) {
    specs[at].flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE;
    PyObject *type = PyType_FromSpec(&specs[at]);
    if (type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0) return -1;
    if (at == 0) shmi_quick.function = (PyTypeObject *)type;
    else Py_DECREF(type);
  }
  return 0;
}
