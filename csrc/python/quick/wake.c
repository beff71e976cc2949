/* wake -- what a task of an event loop sleeps on until its call has ended, and whether the loop has
 * anything else to do. See quick.h.
 *
 * To the task it is a future of the loop (asyncio's protocol: it is awaited, and told of one callback),
 * and nobody else has it. A future always has its task go on in the loop's next turn, and such a turn
 * costs as much as all the rest of a call. This one can be told to have it go on at once, in the
 * callback that has read the reply.
 */
#include <poll.h>
#include <stddef.h>

#include "python/quick/quick.h"

#include <structmember.h>

enum { TURNS = 8 };

typedef struct {
  PyObject_HEAD
  PyObject *loop;
  PyObject *callback, *context; /* the task's; NULL: it has not slept, or was told */
  PyObject *error;              /* what the task gets; NULL: nothing */
  char is_done, is_blocking;    /* the latter is asyncio's word for "awaited, not merely returned" */
} quick_wake_t;

/* ---- as the task sees it ---------------------------------------------------------------------- */

/* Whether it has an error, which is raised. */
static bool raise_error(const quick_wake_t *self) {
  if (self->error != NULL) PyErr_SetObject((PyObject *)Py_TYPE(self->error), self->error);
  return self->error != NULL;
}

/* To an await: itself until it is done; then its end. */
static PyObject *next(quick_wake_t *self) {
  if (!self->is_done) {
    self->is_blocking = true;
    return Py_NewRef((PyObject *)self);
  }
  raise_error(self);
  return NULL;
}

static PyObject *get_loop(quick_wake_t *self, PyObject *nothing) {
  (void)nothing;
  return Py_NewRef(self->loop);
}

static PyObject *result(quick_wake_t *self, PyObject *nothing) {
  (void)nothing;
  return raise_error(self) ? NULL : Py_NewRef(Py_None);
}

static PyObject *done(quick_wake_t *self, PyObject *nothing) {
  (void)nothing;
  return PyBool_FromLong(self->is_done);
}

/* What is to be called is the caller's from now on; false: there is none (yet). */
static bool take_callback(quick_wake_t *self, PyObject **callback, PyObject **context) {
  *callback = self->callback;
  *context = self->context;
  self->callback = self->context = NULL;
  return *callback != NULL;
}

/* The task goes on in the loop's next turn. */
static bool schedule(quick_wake_t *self) {
  PyObject *callback, *context, *scheduled = NULL;
  if (!take_callback(self, &callback, &context)) return true;
  PyObject *call_soon = PyObject_GetAttr(self->loop, shmi_quick.call_soon);
  PyObject *args = PyTuple_Pack(2, callback, (PyObject *)self), *named = PyDict_New();
  if (call_soon != NULL && args != NULL && named != NULL &&
      PyDict_SetItem(named, shmi_quick.context, context) == 0) {
    scheduled = PyObject_Call(call_soon, args, named);
  }
  bool is_scheduled = scheduled != NULL;
  Py_XDECREF(scheduled);
  Py_XDECREF(named);
  Py_XDECREF(args);
  Py_XDECREF(call_soon);
  Py_DECREF(context);
  Py_DECREF(callback);
  return is_scheduled;
}

/* add_done_callback(callback, *, context=None): of the one task that awaits it. */
static PyObject *add_done_callback(quick_wake_t *self, PyObject *args, PyObject *named) {
  PyObject *callback, *context = Py_None;
  static char *names[] = {"", "context", NULL};
  if (!PyArg_ParseTupleAndKeywords(args, named, "O|$O", names, &callback, &context)) return NULL;
  PyObject *before[] = {self->callback, self->context};
  self->callback = Py_NewRef(callback);
  self->context = Py_NewRef(context);
  for (size_t at = 0; at < sizeof before / sizeof *before; at++) Py_XDECREF(before[at]);
  if (self->is_done && !schedule(self)) return NULL;
  Py_RETURN_NONE;
}

static PyObject *cancelled_error(PyObject *message) {
  PyObject *type = shmi_quick.cancelled_error;
  return message == Py_None ? PyObject_CallNoArgs(type)
                            : PyObject_CallFunctionObjArgs(type, message, NULL);
}

/* A task may be cancelled at any moment, and then nothing is left to import. */
static bool know_cancelled_error(void) {
  if (shmi_quick.cancelled_error != NULL) return true;
  PyObject *asyncio = PyImport_ImportModule("asyncio"); /* imported by whoever runs a loop */
  if (asyncio != NULL) shmi_quick.cancelled_error = PyObject_GetAttrString(asyncio, "CancelledError");
  Py_XDECREF(asyncio);
  return shmi_quick.cancelled_error != NULL;
}

/* cancel(msg=None): the task gets a CancelledError in the loop's next turn; False where it was woken. */
static PyObject *cancel(quick_wake_t *self, PyObject *args, PyObject *named) {
  PyObject *message = Py_None;
  static char *names[] = {"msg", NULL};
  if (!PyArg_ParseTupleAndKeywords(args, named, "|O", names, &message)) return NULL;
  if (self->is_done) Py_RETURN_FALSE;
  PyObject *error = cancelled_error(message);
  if (error == NULL) return NULL;
  self->error = error;
  self->is_done = true;
  if (!schedule(self)) return NULL;
  Py_RETURN_TRUE;
}

/* ---- as whoever wakes it sees it -------------------------------------------------------------- */

/* set_result(None): the task goes on in the loop's next turn. */
static PyObject *set_result(quick_wake_t *self, PyObject *nothing) {
  (void)nothing;
  if (!self->is_done) {
    self->is_done = true;
    if (!schedule(self)) return NULL;
  }
  Py_RETURN_NONE;
}

/* go_on(): in a callback of the loop, the task goes on now. Raises what ends the loop. */
static PyObject *go_on(quick_wake_t *self, PyObject *nothing) {
  (void)nothing;
  PyObject *callback, *context, *gone;
  self->is_done = true;
  if (!take_callback(self, &callback, &context)) Py_RETURN_NONE;
  gone = PyObject_CallMethodObjArgs(context, shmi_quick.run, callback, (PyObject *)self, NULL);
  Py_DECREF(context);
  Py_DECREF(callback);
  return gone;
}

bool shmi_go_on(PyObject *wake) {
  if (Py_TYPE(wake) != shmi_quick.wake) return true; /* it has woken otherwise */
  PyObject *gone = go_on((quick_wake_t *)wake, NULL);
  Py_XDECREF(gone);
  return gone != NULL;
}

/* ---- the loop --------------------------------------------------------------------------------- */

/* know_loop(running_loop, loop, reader, descriptor): asyncio's function, a weak reference to the loop
 * that calls, what that looks at, and what is readable where it has something to do, or -1. */
PyObject *shmi_know_loop(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *running_loop, *loop, *reader;
  int descriptor;
  if (!PyArg_ParseTuple(given, "OOOi", &running_loop, &loop, &reader, &descriptor)) return NULL;
  PyObject *before[] = {shmi_quick.running_loop, shmi_quick.loop, shmi_quick.loop_reader};
  shmi_quick.running_loop = Py_NewRef(running_loop);
  shmi_quick.loop = Py_NewRef(loop);
  shmi_quick.loop_reader = Py_NewRef(reader);
  shmi_quick.loop_fd = descriptor;
  for (size_t at = 0; at < sizeof before / sizeof *before; at++) Py_XDECREF(before[at]);
  Py_RETURN_NONE;
}

PyObject *shmi_loop_that_looks(PyObject **reader) {
  if (shmi_quick.running_loop == NULL) return NULL;
  PyObject *loop = PyObject_CallNoArgs(shmi_quick.running_loop);
  PyObject *port = (PyObject *)shmi_quick.port, *of = Py_NewRef(shmi_quick.loop_reader);
  if (loop != NULL && loop != Py_None && shmi_is(PyObject_CallNoArgs(shmi_quick.loop), loop) &&
      shmi_is(PyObject_CallMethodObjArgs(of, shmi_quick.looks, NULL), port)) {
    *reader = Py_NewRef(of);
  } else {
    Py_CLEAR(loop);
  }
  Py_DECREF(of);
  return loop;
}

static bool has(PyObject *of, PyObject *name, PyObject *wanted) {
  return shmi_is(PyObject_GetAttr(of, name), wanted);
}

static bool is_empty(PyObject *of, PyObject *name) {
  PyObject *found = PyObject_GetAttr(of, name);
  bool is = found != NULL && PyObject_Size(found) == 0;
  Py_XDECREF(found);
  return is;
}

/* The time of the loop's first timer, in its seconds; 0: that is not known. */
static double first_timer(PyObject *loop, double otherwise) {
  PyObject *timers = PyObject_GetAttr(loop, shmi_quick.loop_timers), *when = NULL;
  double first = timers != NULL && PyList_CheckExact(timers) ? otherwise : 0;
  if (first != 0 && PyList_Size(timers) > 0) {
    when = PyObject_GetAttr(PyList_GetItem(timers, 0), shmi_quick.timer_when);
    first = when != NULL ? PyFloat_AsDouble(when) : 0;
  }
  Py_XDECREF(when);
  Py_XDECREF(timers);
  return first;
}

bool shmi_loop_has_its_turn(void) {
  static unsigned looks;
  struct pollfd one = {.fd = shmi_quick.loop_fd, .events = POLLIN};
  return ++looks % TURNS == 0 && poll(&one, 1, 0) != 0;
}

bool shmi_loop_idles(const quick_future_t *future, uint64_t now_ns, uint64_t *until_ns) {
  PyObject *loop = future->loop;
  /* Each loop has its own reader. */
  if (shmi_quick.loop_fd < 0 || future->reader != shmi_quick.loop_reader) return false;
  if (!is_empty(loop, shmi_quick.loop_ready) || !is_empty(future->reader, shmi_quick.waiting) ||
      !has(loop, shmi_quick.loop_debug, Py_False) || !has(loop, shmi_quick.loop_stopping, Py_False) ||
      !has(loop, shmi_quick.loop_factory, Py_None)) {
    return false;
  }
  double limit = (double)(*until_ns) / 1e9, first = first_timer(loop, limit);
  if (first < limit) *until_ns = first > 0 ? (uint64_t)(first * 1e9) : 0;
  return *until_ns > now_ns && !PyErr_Occurred();
}

/* ---- the type --------------------------------------------------------------------------------- */

/* QuickWake(loop). */
static PyObject *wake_new(PyTypeObject *type, PyObject *given, PyObject *named) {
  (void)named;
  PyObject *loop;
  if (!PyArg_ParseTuple(given, "O", &loop) || !know_cancelled_error()) return NULL;
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  quick_wake_t *made = (quick_wake_t *)allocate(type, 0);
  if (made != NULL) made->loop = Py_NewRef(loop);
  return (PyObject *)made;
}

static int wake_traverse(quick_wake_t *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(self->loop);
  Py_VISIT(self->callback);
  Py_VISIT(self->context);
  Py_VISIT(self->error);
  return 0;
}

static int wake_clear(quick_wake_t *self) {
  Py_CLEAR(self->loop);
  Py_CLEAR(self->callback);
  Py_CLEAR(self->context);
  Py_CLEAR(self->error);
  return 0;
}

static void wake_dealloc(quick_wake_t *self) {
  PyObject_GC_UnTrack(self);
  wake_clear(self);
  shmi_free_object((PyObject *)self);
}

static PyMethodDef methods[] = {
    {"get_loop", (PyCFunction)get_loop, METH_NOARGS, "The loop of its task."},
    {"add_done_callback", (PyCFunction)(void (*)(void))add_done_callback,
     METH_VARARGS | METH_KEYWORDS, "How the task goes on."},
    {"result", (PyCFunction)result, METH_NOARGS, "None; raises where the task was cancelled."},
    {"cancel", (PyCFunction)(void (*)(void))cancel, METH_VARARGS | METH_KEYWORDS,
     "The task was cancelled."},
    {"done", (PyCFunction)done, METH_NOARGS, "Whether the task goes on."},
    {"set_result", (PyCFunction)set_result, METH_O, "The task goes on in the loop's next turn."},
    {"go_on", (PyCFunction)go_on, METH_NOARGS, "The task goes on now."},
    {0},
};

static PyMemberDef members[] = {
    {"_asyncio_future_blocking", T_BOOL, offsetof(quick_wake_t, is_blocking), 0, NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_new, wake_new},
    {Py_tp_dealloc, wake_dealloc},
    {Py_tp_traverse, wake_traverse},
    {Py_tp_clear, wake_clear},
    {Py_am_await, PyObject_SelfIter},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, next},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_doc, "What a task sleeps on until its call has ended; for shmgpu.child.futures."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "shmgpu._quick.QuickWake",
    .basicsize = sizeof(quick_wake_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int shmi_add_wake(PyObject *module) {
  PyObject *type = PyType_FromSpec(&spec);
  if (type == NULL) return -1;
  shmi_quick.wake = (PyTypeObject *)type;
  return PyModule_AddType(module, (PyTypeObject *)type);
}
