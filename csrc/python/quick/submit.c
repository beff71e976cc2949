/* submit -- calls that are sent without waiting, and their ends. See quick.h.
 *
 * A ticket is what Python's port has of any submitted call (shmgpu/child/tickets.py), so whoever
 * reads its reply first may end it: the thread that asks for the result, here, where the call ended
 * as nearly all do, or any thread, through Python. What is to be indivisible runs no Python code: a
 * ticket is noted and its message sent; its result is made, and then given to whoever holds the
 * future. A reply that is not of the expected kind goes back to where Python finds it.
 */
#include <stddef.h>
#include <time.h>

#include "python/quick/quick.h"

#include <structmember.h>

enum { LOOK_NS = 50000000 }; /* then Python looks who else ended the call, as in replies.py */
enum { MOST_IN_VAIN = 6 };   /* waits beside a loop: after n in vain, the next 2^n - 1 are left out */

/* ---- loans: as lend() and return_loans() of shmgpu/child/plans.py, each in one step ----------- */

static PyObject *arrays_to_lend(PyObject *args, PyObject *named) {
  PyObject *lent = PyList_New(0), *key, *item;
  Py_ssize_t place = 0;
  for (Py_ssize_t at = 0; lent != NULL && at < PyTuple_Size(args); at++) {
    item = PyTuple_GetItem(args, at);
    if (shmi_array_is_here(item) && PyList_Append(lent, item) < 0) Py_CLEAR(lent);
  }
  while (lent != NULL && PyDict_Next(named, &place, &key, &item)) {
    if (shmi_array_is_here(item) && PyList_Append(lent, item) < 0) Py_CLEAR(lent);
  }
  return lent;
}

static bool lend(PyObject *array, PyObject *borrower) {
  PyObject *key = PyLong_FromVoidPtr(array);
  PyObject *loan = key != NULL ? PyDict_GetItemWithError(shmi_quick.loans, key) : NULL;
  bool is_lent = false;
  if (loan != NULL) {
    is_lent = PySet_Add(PyTuple_GetItem(loan, 1), borrower) == 0;
  } else if (key != NULL) {
    PyObject *may = shmi_array_may_write(array) ? Py_True : Py_False, *borrowers = PySet_New(NULL);
    loan = borrowers != NULL ? PyTuple_Pack(3, array, borrowers, may) : NULL;
    Py_XDECREF(borrowers);
    is_lent = loan != NULL && PySet_Add(PyTuple_GetItem(loan, 1), borrower) == 0 &&
              PyDict_SetItem(shmi_quick.loans, key, loan) == 0;
    Py_XDECREF(loan);
  }
  Py_XDECREF(key);
  if (is_lent) shmi_array_set_write(array, false);
  return is_lent;
}

static void return_loans(quick_ticket_t *ticket) {
  if (!PyList_Check(ticket->loans)) return;
  for (Py_ssize_t at = 0; at < PyList_Size(ticket->loans); at++) {
    PyObject *array = PyList_GetItem(ticket->loans, at), *key = PyLong_FromVoidPtr(array);
    PyObject *loan = key != NULL ? PyDict_GetItemWithError(shmi_quick.loans, key) : NULL;
    if (loan != NULL && PySet_Discard(PyTuple_GetItem(loan, 1), (PyObject *)ticket) >= 0 &&
        PySet_Size(PyTuple_GetItem(loan, 1)) == 0) {
      shmi_array_set_write(array, PyTuple_GetItem(loan, 2) == Py_True);
      PyDict_DelItem(shmi_quick.loans, key);
    }
    Py_XDECREF(key);
    PyErr_Clear(); /* no memory: it stays read-only */
  }
}

/* ---- tickets -------------------------------------------------------------------------------- */

static quick_ticket_t *new_ticket(quick_port_t *port, quick_call_t *ready, PyObject *list,
                                  PyObject *handler, PyObject *args, PyObject *named,
                                  PyObject *function, const quick_found_t *found) {
  allocfunc allocate = (allocfunc)PyType_GetSlot(shmi_quick.ticket, Py_tp_alloc);
  quick_ticket_t *made = (quick_ticket_t *)allocate(shmi_quick.ticket, 0);
  if (made == NULL) return NULL;
  made->call = Py_NewRef(ready->call);
  made->handler = Py_NewRef(handler);
  made->number = PyIter_Next(port->numbers);
  made->deadline_ns = PyLong_FromLong(0);
  PyObject *arrays = shmi_arrays_of(found);
  made->keep = arrays != NULL ? PyTuple_Pack(4, args, named, function, arrays) : NULL;
  Py_XDECREF(arrays);
  made->loans = arrays_to_lend(args, named);
  made->error = Py_NewRef(Py_None);
  made->ready = Py_NewRef((PyObject *)ready);
  made->list = Py_NewRef(list);
  bool is_whole = made->number != NULL && made->deadline_ns != NULL && made->keep != NULL &&
                  made->loans != NULL;
  for (Py_ssize_t at = 0; is_whole && at < PyList_Size(made->loans); at++) {
    is_whole = lend(PyList_GetItem(made->loans, at), (PyObject *)made);
  }
  if (!is_whole) {
    if (made->loans != NULL) return_loans(made);
    Py_CLEAR(made);
  }
  return made;
}

static bool is_out(const quick_port_t *port, const quick_ticket_t *ticket) {
  return PyDict_GetItemWithError(port->out, ticket->number) == (PyObject *)ticket;
}

/* Writes what Python would find in a call that it had made itself. */
static bool complete(const quick_call_t *ready, const quick_found_t *found) {
  PyObject *places = shmi_addresses_of(ready, found->addresses);
  bool is_done = places != NULL && shmi_forget_values(ready) &&
                 PyObject_SetAttr(ready->call, shmi_quick.addresses, places) == 0 &&
                 PyObject_SetAttr(ready->call, shmi_quick.result, ready->buffer) == 0;
  Py_XDECREF(places);
  return is_done;
}

/* It has no output buffer but its own, as long as it is not out. An exception that there is stays. */
static void forget(const quick_call_t *ready) {
  PyObject *kind, *value, *trace;
  PyErr_Fetch(&kind, &value, &trace);
  if (PyObject_SetAttr(ready->call, shmi_quick.result, Py_None) < 0) PyErr_Clear();
  PyErr_Restore(kind, value, trace);
}

/* In one step: whoever reads the reply finds the ticket. */
static bool post(quick_port_t *port, quick_ticket_t *ticket, const quick_found_t *found) {
  const quick_call_t *ready = (const quick_call_t *)ticket->ready;
  uint64_t number = PyLong_AsUnsignedLongLong(ticket->number);
  if (PyDict_SetItem(port->out, ticket->number, (PyObject *)ticket) < 0) return false;
  int status = shmi_quick.resubmit(ready->repeat, found->addresses, ready->room, number,
                                   &ticket->sequence);
  if (status != SHM_OK) {
    PyDict_DelItem(port->out, ticket->number);
    return false;
  }
  ticket->is_near = (char)shmi_quick.is_near(ready->repeat->config.port, ticket->sequence);
  return true;
}

/* The ticket of such a call; NULL, perhaps with an exception: it is to be submitted through Python.
 */
static quick_ticket_t *send(quick_port_t *port, PyObject *list, PyObject *function, PyObject *args,
                            PyObject *named, PyObject *handler, quick_found_t *found) {
  quick_call_t *ready = shmi_take(list);
  if (ready == NULL) return NULL;
  quick_ticket_t *ticket = NULL;
  if (shmi_fill(ready, found) && complete(ready, found)) {
    ticket = new_ticket(port, ready, list, handler, args, named, function, found);
  }
  if (ticket != NULL && !post(port, ticket, found)) {
    return_loans(ticket);
    Py_CLEAR(ticket);
  }
  if (ticket == NULL) {
    forget(ready);
    shmi_put_back(list, ready);
  }
  Py_DECREF(ready);
  return ticket;
}

static bool may_submit(const quick_port_t *port) {
  return port->closed == Py_None && PyObject_Size(port->queue) == 0 && shmi_quick.ticket != NULL;
}

/* The ticket of a call like an earlier one, which was sent; NULL, perhaps with an exception: it is to
 * be submitted through Python. */
static PyObject *submit(quick_port_t *port, PyObject *function, PyObject *args, PyObject *named,
                        PyObject *handler) {
  if (!PyObject_TypeCheck(function, shmi_quick.function) || !shmi_may_send(port, function) ||
      !may_submit(port)) {
    return NULL;
  }
  quick_found_t found;
  quick_ticket_t *ticket = NULL;
  PyObject *signatures = ((quick_function_t *)function)->signatures;
  quick_signature_t *signature = shmi_signature_of(signatures, args, named, &found);
  if (signature != NULL) {
    PyObject *list = Py_NewRef(signature->ready);
    ticket = send(port, list, function, args, named, handler, &found);
    shmi_let_go(&found);
    Py_DECREF(list);
    Py_DECREF((PyObject *)signature);
  }
  return (PyObject *)ticket;
}

/* What there is; None where it is to be submitted through Python. */
static PyObject *or_none(PyObject *made) {
  if (made == NULL && !PyErr_Occurred()) Py_RETURN_NONE;
  return made;
}

/* submit(port, function, args, named, handler): the ticket of a call like an earlier one, which was
 * sent; or None. */
PyObject *shmi_submit(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *port, *function, *args, *named, *handler;
  if (!PyArg_ParseTuple(given, "OOO!O!O", &port, &function, &PyTuple_Type, &args, &PyDict_Type,
                        &named, &handler)) {
    return NULL;
  }
  if (port != (PyObject *)shmi_quick.port) Py_RETURN_NONE;
  return or_none(submit(shmi_quick.port, function, args, named, handler));
}

/* What `start` and its like are given. */
enum { FUNCTION, ARGS, NAMED, TYPE, GIVEN };

/* The same future, of a call like an earlier one, which was sent; NULL, perhaps with an exception: it is
 * to be submitted through Python. */
static PyObject *of_call(quick_future_t *future, quick_port_t *port, PyObject *const *given) {
  shmi_set(&future->port, (PyObject *)port);
  PyObject *ticket = submit(port, given[FUNCTION], given[ARGS], given[NAMED], (PyObject *)future);
  if (ticket != NULL) shmi_set(&future->ticket, ticket);
  else Py_CLEAR(future);
  Py_XDECREF(ticket);
  return (PyObject *)future;
}

/* The port, held, that such a call may be made by; NULL, with an exception or without. */
static quick_port_t *port_for(PyObject *const *given, Py_ssize_t count) {
  if (count != GIVEN || !PyTuple_Check(given[ARGS]) || !PyDict_Check(given[NAMED]) ||
      !PyType_Check(given[TYPE])) {
    PyErr_SetString(PyExc_TypeError, "a function, a tuple, a dict and the type of a future");
    return NULL;
  }
  quick_port_t *port = shmi_quick.port;
  if (port == NULL || port->look != Py_None) return NULL; /* whoever wants to look first is Python's */
  return (quick_port_t *)Py_NewRef((PyObject *)port);
}

/* start(function, args, named, type): a future of that type, of a call like an earlier one, which was
 * sent; or None. All that Python does for it otherwise, in one step. */
PyObject *shmi_start(PyObject *module, PyObject *const *given, Py_ssize_t count) {
  (void)module;
  PyObject *started = NULL;
  quick_port_t *port = port_for(given, count);
  if (port == NULL) return or_none(NULL);
  /* A thread that reads replies when nobody asks is Python's to start. */
  quick_future_t *future =
      port->reader != Py_None ? shmi_new_future((PyTypeObject *)given[TYPE]) : NULL;
  if (future != NULL) started = of_call(future, port, given);
  if (started != NULL && port->reader == Py_None) { /* it has just ended: nothing had been out */
    PyObject *done = PyObject_CallMethodObjArgs((PyObject *)port, shmi_quick.start_reader, NULL);
    if (done == NULL) Py_CLEAR(started);
    Py_XDECREF(done);
  }
  Py_DECREF((PyObject *)port);
  return or_none(started);
}

/* start_awaited(function, args, named, type): the same, of a call that the running loop awaits. */
PyObject *shmi_start_awaited(PyObject *module, PyObject *const *given, Py_ssize_t count) {
  (void)module;
  PyObject *reader = NULL, *started = NULL;
  quick_port_t *port = port_for(given, count);
  PyObject *loop = port != NULL ? shmi_loop_that_looks(&reader) : NULL;
  /* To make it may run Python code, and have another loop be the one that called last. */
  quick_future_t *future = loop != NULL ? shmi_new_future((PyTypeObject *)given[TYPE]) : NULL;
  if (future != NULL) {
    shmi_set(&future->loop, loop);
    shmi_set(&future->reader, reader);
    started = of_call(future, port, given);
  }
  Py_XDECREF(reader);
  Py_XDECREF(loop);
  Py_XDECREF((PyObject *)port);
  return or_none(started);
}

/* ---- ends ----------------------------------------------------------------------------------- */

/* Whether that is the ticket of a call that was sent from here. */
static bool is_ready_made(PyObject *ticket) {
  return Py_TYPE(ticket) == shmi_quick.ticket && ((quick_ticket_t *)ticket)->ready != NULL;
}

static bool may_settle(const quick_port_t *port, const quick_ticket_t *ticket) {
  return is_out(port, ticket) && ticket->handler != Py_None && ticket->error == Py_None &&
         (ticket->offers == NULL || PyDict_Size(ticket->offers) == 0);
}

static bool may_end(const quick_port_t *port, const quick_ticket_t *ticket) {
  return may_settle(port, ticket) && shmi_is_unmade(ticket->handler);
}

/* What the caller gets; NULL, perhaps with an exception: Python says what it is. */
static PyObject *expected_result(const quick_call_t *ready, const shm_reply_t *reply) {
  bool has_arrays = PyTuple_Size(ready->arrays) > 0;
  if (reply->status != SHM_OK || has_arrays == (reply->value != 0)) return NULL;
  *ready->repeat->reply = *reply;
  return has_arrays ? shmi_result(ready) : shmi_lone_value(ready);
}

/* The call is over: what it used is free. Gives what was kept for it, to let go of at last: that may
 * run Python code. */
static PyObject *release(quick_port_t *port, quick_ticket_t *ticket) {
  quick_call_t *ready = (quick_call_t *)ticket->ready;
  return_loans(ticket);
  PyObject *loans = ticket->loans; /* these arrays are kept, too, until after this: none is freed */
  ticket->loans = Py_NewRef(Py_None);
  Py_DECREF(loans);
  forget(ready);
  PyDict_DelItem(port->out, ticket->number);
  PyList_Append(ticket->list, (PyObject *)ready); /* or it is made again when asked */
  PyErr_Clear();
  PyObject *kept = ticket->keep;
  ticket->keep = Py_NewRef(Py_None);
  return kept;
}

/* In one step: the call is over, and its result the future's. */
static void end(quick_port_t *port, quick_ticket_t *ticket, PyObject *result) {
  quick_future_t *future = (quick_future_t *)ticket->handler;
  PyObject *before[] = {future->result, future->made, future->state, NULL, (PyObject *)future};
  future->result = Py_NewRef(result);
  future->made = Py_NewRef(shmi_quick.ended);
  future->state = Py_NewRef(shmi_quick.finished);
  /* Those who hold the ticket keep nothing else, and a future and its ticket not each other. */
  ticket->handler = Py_NewRef(Py_None);
  before[3] = release(port, ticket);
  for (size_t at = 0; at < sizeof before / sizeof *before; at++) Py_DECREF(before[at]);
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Waits for its end: the result, if it came as expected and was told; NULL, perhaps with an exception:
 * Python goes on, as where there is something to read beside it. 0: there is no such time; -1: no such
 * descriptor. */
static PyObject *await_end(quick_port_t *port, PyObject *waited, uint64_t until_ns, int beside_fd) {
  quick_ticket_t *ticket = (quick_ticket_t *)waited;
  if (!is_ready_made(waited) || !may_end(port, ticket)) return NULL;
  shm_reply_t reply;
  uint32_t number = ((quick_call_t *)ticket->ready)->repeat->config.port;
  uint64_t look_ns = now_ns() + LOOK_NS;
  if (until_ns != 0 && until_ns < look_ns) look_ns = until_ns;
  PyThreadState *thread = PyEval_SaveThread();
  int status = shmi_quick.await_reply(number, ticket->sequence, look_ns, beside_fd, &reply);
  PyEval_RestoreThread(thread);
  if (status != SHM_OK) return NULL;
  PyObject *result = NULL;
  if (may_end(port, ticket)) result = expected_result((quick_call_t *)ticket->ready, &reply);
  /* What says what a plain value is may be Python's, and somebody may have ended the call there. */
  if (result != NULL && may_end(port, ticket)) {
    end(port, ticket, result);
  } else {
    shmi_quick.put_back(number, &reply);
    Py_CLEAR(result);
  }
  return result;
}

/* await_end(port, ticket, until_ns): whether it has ended so. */
PyObject *shmi_await_end(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *one, *waited, *result = NULL;
  unsigned long long until_ns;
  if (!PyArg_ParseTuple(given, "OOK", &one, &waited, &until_ns)) return NULL;
  if (one == (PyObject *)shmi_quick.port) result = await_end(shmi_quick.port, waited, until_ns, -1);
  bool has_ended = result != NULL;
  Py_XDECREF(result);
  return PyErr_Occurred() ? NULL : PyBool_FromLong(has_ended);
}

/* result(future): of one that nobody has waited for yet, once its call has ended; or NotImplemented,
 * and Python goes on. */
PyObject *shmi_future_result(PyObject *module, PyObject *future) {
  (void)module;
  quick_port_t *port = shmi_quick.port;
  PyObject *result = NULL;
  if (port != NULL && shmi_is_unmade(future)) {
    PyObject *ticket = Py_NewRef(((quick_future_t *)future)->ticket);
    Py_INCREF(port);
    result = await_end(port, ticket, 0, -1);
    if (result != NULL && !shmi_pump(port)) Py_CLEAR(result); /* the future has it all the same */
    Py_DECREF(port);
    Py_DECREF(ticket);
  }
  if (result == NULL && !PyErr_Occurred()) return Py_NewRef(Py_NotImplemented);
  return result;
}

/* Waiting here costs what any call costs, and by way of the loop twice that. */
PyObject *shmi_await_in_place(quick_future_t *future) {
  static unsigned in_vain, pauses;
  quick_port_t *port = shmi_quick.port;
  if (port == NULL || !shmi_is_unmade((PyObject *)future) || !is_ready_made(future->ticket)) {
    Py_RETURN_NONE;
  }
  if (future->woken != Py_None) Py_RETURN_NONE; /* another task awaits it */
  if (pauses > 0) {
    pauses--;
    Py_RETURN_NONE;
  }
  uint64_t now = now_ns(), until_ns = now + LOOK_NS;
  if (!shmi_loop_idles(future, now, &until_ns)) return or_none(NULL);
  if (shmi_loop_has_its_turn()) Py_RETURN_FALSE;
  Py_INCREF(port);
  PyObject *ticket = Py_NewRef(future->ticket);
  PyObject *result = await_end(port, ticket, until_ns, shmi_quick.loop_fd);
  bool has_ended = result != NULL;
  in_vain = has_ended ? 0 : in_vain < MOST_IN_VAIN ? in_vain + 1 : in_vain;
  pauses = (1u << in_vain) - 1;
  if (has_ended) shmi_pump(port); /* the future has its result all the same */
  Py_XDECREF(result);
  Py_DECREF(ticket);
  Py_DECREF((PyObject *)port);
  return PyErr_Occurred() ? NULL : PyBool_FromLong(has_ended);
}

static PyObject *first_of(PyObject *set) {
  PyObject *items = PySet_Size(set) == 1 ? PyObject_GetIter(set) : NULL;
  PyObject *first = items != NULL ? PyIter_Next(items) : NULL;
  Py_XDECREF(items);
  return first;
}

/* read_alone(waiting, glance_ns): in a callback of the loop: whether one call alone waits in it, has
 * ended as expected, as one look says, and whoever awaits it has gone on. Raises what ends the loop. */
PyObject *shmi_read_alone(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *waiting, *result = NULL;
  unsigned long long glance_ns;
  if (!PyArg_ParseTuple(given, "O!K", &PySet_Type, &waiting, &glance_ns)) return NULL;
  quick_port_t *port = shmi_quick.port;
  PyObject *one = port != NULL ? first_of(waiting) : NULL;
  if (one != NULL && shmi_is_unmade(one) && ((quick_future_t *)one)->woken != Py_None) {
    PyObject *ticket = Py_NewRef(((quick_future_t *)one)->ticket);
    PyObject *wake = Py_NewRef(((quick_future_t *)one)->woken);
    Py_INCREF(port);
    result = await_end(port, ticket, glance_ns, -1);
    /* Where something strikes here, the loop's next look has whoever awaits it go on. */
    if (result != NULL && !(shmi_pump(port) && shmi_go_on(wake))) Py_CLEAR(result);
    Py_DECREF((PyObject *)port);
    Py_DECREF(wake);
    Py_DECREF(ticket);
  }
  bool has_gone_on = result != NULL;
  Py_XDECREF(result);
  Py_XDECREF(one);
  return PyErr_Occurred() ? NULL : PyBool_FromLong(has_gone_on);
}

/* settle(port, inbox, ticket, status, value): the first reply of an inbox of shmgpu/child/replies.py
 * says that such a call has ended. If it has as expected, puts in its place what the handler is to
 * hear, as a call that is over, all in one step; and says whether it did. */
PyObject *shmi_settle(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *one, *inbox, *read, *result = NULL, *told = NULL;
  int status;
  unsigned long long value;
  if (!PyArg_ParseTuple(given, "OOOiK", &one, &inbox, &read, &status, &value)) return NULL;
  quick_port_t *port = shmi_quick.port;
  quick_ticket_t *ticket = (quick_ticket_t *)read;
  if (one != (PyObject *)port || !is_ready_made(read) || !may_settle(port, ticket)) Py_RETURN_FALSE;
  const shm_reply_t reply = {.status = status, .value = value};
  result = expected_result((quick_call_t *)ticket->ready, &reply);
  /* What makes a result may be Python's, and there it may have been told of otherwise. */
  if (result != NULL && may_settle(port, ticket)) {
    told = Py_BuildValue("(OOOOO)", read, ticket->handler, result, Py_None, Py_False);
  }
  bool is_told = told != NULL && PySequence_SetItem(inbox, 0, told) == 0;
  if (is_told) Py_DECREF(release(port, ticket));
  Py_XDECREF(told);
  Py_XDECREF(result);
  return PyErr_Occurred() ? NULL : PyBool_FromLong(is_told);
}

/* ---- the type ------------------------------------------------------------------------------- */

/* know_ticket(type, loans): of shmgpu.child.tickets; know_ends(ended, finished, pending): what
 * a future says that has ended, or not. */
PyObject *shmi_know_ticket(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *type, *loans;
  if (!PyArg_ParseTuple(given, "O!O!", &PyType_Type, &type, &PyDict_Type, &loans)) {
    return NULL;
  }
  shmi_quick.ticket = (PyTypeObject *)Py_NewRef(type);
  shmi_quick.loans = Py_NewRef(loans);
  Py_RETURN_NONE;
}

PyObject *shmi_know_ends(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *ended, *finished, *pending;
  if (!PyArg_ParseTuple(given, "OOO", &ended, &finished, &pending)) return NULL;
  shmi_quick.ended = Py_NewRef(ended);
  shmi_quick.finished = Py_NewRef(finished);
  shmi_quick.pending = Py_NewRef(pending);
  Py_RETURN_NONE;
}

static PyObject **fields_of(quick_ticket_t *self, size_t at) {
  PyObject **all[] = {&self->call,  &self->handler, &self->number, &self->sent,
                      &self->keep,  &self->loans,   &self->offers, &self->error,
                      &self->ready, &self->list,    &self->deadline_ns};
  return at < sizeof all / sizeof *all ? all[at] : NULL;
}

static int ticket_traverse(quick_ticket_t *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  for (size_t at = 0; fields_of(self, at) != NULL; at++) Py_VISIT(*fields_of(self, at));
  return 0;
}

static int ticket_clear(quick_ticket_t *self) {
  for (size_t at = 0; fields_of(self, at) != NULL; at++) Py_CLEAR(*fields_of(self, at));
  return 0;
}

static void ticket_dealloc(quick_ticket_t *self) {
  PyObject_GC_UnTrack(self);
  ticket_clear(self);
  shmi_free_object((PyObject *)self);
}

/* What most calls that were sent from here never need is made for whoever asks. */
static PyObject *get_sent(quick_ticket_t *self, void *nothing) {
  (void)nothing;
  if (self->sent == NULL) self->sent = Py_BuildValue("[K]", (unsigned long long)self->sequence);
  return Py_XNewRef(self->sent);
}

static PyObject *get_offers(quick_ticket_t *self, void *nothing) {
  (void)nothing;
  if (self->offers == NULL) self->offers = PyDict_New();
  return Py_XNewRef(self->offers);
}

static int set_sent(quick_ticket_t *self, PyObject *sent, void *nothing) {
  (void)nothing;
  shmi_set(&self->sent, sent);
  return 0;
}

static int set_offers(quick_ticket_t *self, PyObject *offers, void *nothing) {
  (void)nothing;
  shmi_set(&self->offers, offers);
  return 0;
}

static PyGetSetDef made_when_asked[] = {
    {"sent", (getter)get_sent, (setter)set_sent, NULL, NULL},
    {"offers", (getter)get_offers, (setter)set_offers, NULL, NULL},
    {0},
};

static PyMemberDef members[] = {
    {"call", T_OBJECT_EX, offsetof(quick_ticket_t, call), 0, NULL},
    {"handler", T_OBJECT_EX, offsetof(quick_ticket_t, handler), 0, NULL},
    {"number", T_OBJECT_EX, offsetof(quick_ticket_t, number), 0, NULL},
    {"keep", T_OBJECT_EX, offsetof(quick_ticket_t, keep), 0, NULL},
    {"loans", T_OBJECT_EX, offsetof(quick_ticket_t, loans), 0, NULL},
    {"error", T_OBJECT_EX, offsetof(quick_ticket_t, error), 0, NULL},
    {"ready", T_OBJECT, offsetof(quick_ticket_t, ready), READONLY, NULL},
    {"deadline_ns", T_OBJECT_EX, offsetof(quick_ticket_t, deadline_ns), 0, NULL},
    {"is_near", T_BOOL, offsetof(quick_ticket_t, is_near), 0, NULL},
    {"is_watched", T_BOOL, offsetof(quick_ticket_t, is_watched), 0, NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, ticket_dealloc},
    {Py_tp_traverse, ticket_traverse},
    {Py_tp_clear, ticket_clear},
    {Py_tp_members, members},
    {Py_tp_getset, made_when_asked},
    {Py_tp_doc, "What a shmgpu.child.tickets.Ticket is made of."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "shmgpu._quick.QuickTicket",
    .basicsize = sizeof(quick_ticket_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

int shmi_add_ticket(PyObject *module) {
  PyObject *type = PyType_FromSpec(&spec);
  if (type == NULL) return -1;
  int status = PyModule_AddType(module, (PyTypeObject *)type);
  Py_DECREF(type);
  return status;
}
