/* future -- what callers hold while a call is in flight: the fields of a CallFuture and of a Started,
 * so that C tells them of the end in one step, and what is awaited of a Started. See quick.h, and
 * shmgpu/child/futures.py for the rest.
 */
#include <stddef.h>

#include "python/quick/quick.h"

#include <structmember.h>

static PyObject **fields_of(quick_future_t *self, size_t at) {
  PyObject **all[] = {&self->port,  &self->ticket, &self->made,   &self->state, &self->result,
                      &self->error, &self->loop,   &self->reader, &self->woken};
  return at < sizeof all / sizeof *all ? all[at] : NULL;
}

quick_future_t *shmi_new_future(PyTypeObject *type) {
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  quick_future_t *made = (quick_future_t *)allocate(type, 0);
  if (made == NULL) return NULL;
  for (size_t at = 0; fields_of(made, at) != NULL; at++) *fields_of(made, at) = Py_NewRef(Py_None);
  if (shmi_quick.pending != NULL) shmi_set(&made->state, shmi_quick.pending);
  return made;
}

bool shmi_is_unmade(PyObject *handler) {
  return PyObject_TypeCheck(handler, shmi_quick.future) &&
         ((quick_future_t *)handler)->made == Py_None;
}

void shmi_set(PyObject **field, PyObject *value) {
  PyObject *before = *field;
  *field = Py_XNewRef(value);
  Py_XDECREF(before);
}

/* become(made): what it is made as from now on: that, unless it is something already. */
static PyObject *become(quick_future_t *self, PyObject *made) {
  if (self->made == Py_None) shmi_set(&self->made, made);
  return Py_NewRef(self->made);
}

static PyObject *future_new(PyTypeObject *type, PyObject *given, PyObject *named) {
  (void)given;
  (void)named;
  return (PyObject *)shmi_new_future(type);
}

static int future_traverse(quick_future_t *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  for (size_t at = 0; fields_of(self, at) != NULL; at++) Py_VISIT(*fields_of(self, at));
  return 0;
}

static int future_clear(quick_future_t *self) {
  for (size_t at = 0; fields_of(self, at) != NULL; at++) Py_CLEAR(*fields_of(self, at));
  return 0;
}

static void future_dealloc(quick_future_t *self) {
  PyObject_GC_UnTrack(self);
  future_clear(self);
  shmi_free_object((PyObject *)self);
}

/* ---- those that a task awaits ------------------------------------------------------------------ */

static bool has_result(const quick_future_t *self) {
  return self->made == shmi_quick.ended && self->error == Py_None;
}

/* Nobody wants the call any more. What struck stays, unless a Ctrl-C strikes meanwhile. */
static void give_up(quick_future_t *self) {
  PyObject *kind, *value, *trace;
  PyErr_Fetch(&kind, &value, &trace);
  PyObject *done = PyObject_CallMethodObjArgs((PyObject *)self, shmi_quick.give_up, NULL);
  if (done != NULL || PyErr_ExceptionMatches(PyExc_Exception)) {
    PyErr_Clear();
    PyErr_Restore(kind, value, trace);
  } else {
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
  }
  Py_XDECREF(done);
}

/* What is awaited of a call whose result has come: nothing but that. */
typedef struct {
  PyObject_HEAD
  PyObject *result;
} quick_outcome_t;

static PyTypeObject *outcome_type;

static PyObject *outcome_of(PyObject *result) {
  allocfunc allocate = (allocfunc)PyType_GetSlot(outcome_type, Py_tp_alloc);
  quick_outcome_t *made = (quick_outcome_t *)allocate(outcome_type, 0);
  if (made != NULL) made->result = Py_NewRef(result);
  return (PyObject *)made;
}

static PySendResult outcome_send(quick_outcome_t *self, PyObject *value, PyObject **result) {
  (void)value;
  *result = Py_NewRef(self->result);
  return PYGEN_RETURN;
}

static PyObject *outcome_next(quick_outcome_t *self) {
  PyObject *end = PyObject_CallFunctionObjArgs(PyExc_StopIteration, self->result, NULL);
  if (end != NULL) PyErr_SetObject(PyExc_StopIteration, end);
  Py_XDECREF(end);
  return NULL;
}

static void outcome_dealloc(quick_outcome_t *self) {
  Py_CLEAR(self->result);
  shmi_free_object((PyObject *)self);
}

/* await_in_place(): as shmi_await_in_place; what strikes meanwhile gives the call up. */
static PyObject *await_in_place(quick_future_t *self, PyObject *nothing) {
  (void)nothing;
  PyObject *tried = shmi_await_in_place(self);
  /* A signal broke the wait off: what its handler raises is to be raised here, and not by the steps. */
  if (tried == Py_False && PyErr_CheckSignals() < 0) Py_CLEAR(tried);
  if (tried == NULL) give_up(self);
  return tried;
}

/* To an await: the result, where it has come in place of the loop; else the steps of Python. */
static PyObject *awaited(quick_future_t *self) {
  PyObject *tried = await_in_place(self, NULL), *steps = NULL;
  if (tried == Py_True && has_result(self)) {
    steps = outcome_of(self->result);
  } else if (tried != NULL) {
    steps = PyObject_CallMethodObjArgs((PyObject *)self, shmi_quick.steps, tried, NULL);
  }
  Py_XDECREF(tried);
  return steps;
}

/* ---- the types -------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"become", (PyCFunction)become, METH_O, "What it is made as, unless it is something already."},
    {0},
};

static PyMemberDef members[] = {
    {"_port", T_OBJECT_EX, offsetof(quick_future_t, port), 0, NULL},
    {"_ticket", T_OBJECT_EX, offsetof(quick_future_t, ticket), 0, NULL},
    {"_made", T_OBJECT_EX, offsetof(quick_future_t, made), 0, NULL},
    {"_state", T_OBJECT_EX, offsetof(quick_future_t, state), 0, NULL},
    {"_result", T_OBJECT_EX, offsetof(quick_future_t, result), 0, NULL},
    {"_exception", T_OBJECT_EX, offsetof(quick_future_t, error), 0, NULL},
    {"_loop", T_OBJECT_EX, offsetof(quick_future_t, loop), 0, NULL},
    {"reader", T_OBJECT_EX, offsetof(quick_future_t, reader), 0, NULL},
    {"_woken", T_OBJECT_EX, offsetof(quick_future_t, woken), 0, NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_new, future_new},
    {Py_tp_dealloc, future_dealloc},
    {Py_tp_traverse, future_traverse},
    {Py_tp_clear, future_clear},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_doc, "What the futures of shmgpu.child.futures are made of."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "shmgpu._quick.QuickFuture",
    .basicsize = sizeof(quick_future_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

static PyMethodDef awaited_methods[] = {
    {"await_in_place", (PyCFunction)await_in_place, METH_NOARGS, "Waits where the loop idles."},
    {0},
};

static PyType_Slot awaited_slots[] = {
    {Py_am_await, awaited},
    {Py_tp_methods, awaited_methods},
    {Py_tp_dealloc, future_dealloc},
    {Py_tp_traverse, future_traverse},
    {Py_tp_clear, future_clear},
    {Py_tp_doc, "What a call of shmgpu.child.futures is made of that a task awaits."},
    {0, NULL},
};

static PyType_Spec awaited_spec = {
    .name = "shmgpu._quick.QuickStarted",
    .basicsize = sizeof(quick_future_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = awaited_slots,
};

static PyType_Slot outcome_slots[] = {
    {Py_am_send, outcome_send},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, outcome_next},
    {Py_tp_dealloc, outcome_dealloc},
    {Py_tp_doc, "What is awaited of a call whose result has come."},
    {0, NULL},
};

static PyType_Spec outcome_spec = {
    .name = "shmgpu._quick.QuickOutcome",
    .basicsize = sizeof(quick_outcome_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = outcome_slots,
};

int shmi_add_future(PyObject *module) {
  shmi_quick.future = (PyTypeObject *)PyType_FromSpec(&spec);
  if (shmi_quick.future == NULL || PyModule_AddType(module, shmi_quick.future) < 0) return -1;
  outcome_type = (PyTypeObject *)PyType_FromSpec(&outcome_spec);
  if (outcome_type == NULL) return -1;
  PyObject *type = PyType_FromSpecWithBases(&awaited_spec, (PyObject *)shmi_quick.future);
  if (type == NULL) return -1;
  int added = PyModule_AddType(module, (PyTypeObject *)type);
  Py_DECREF(type);
  return added;
}
