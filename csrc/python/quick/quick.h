/* quick -- a call like an earlier one, from the caller's arguments to its result, in C: the module
 * shmgpu._quick.
 *
 * Of a small call's processor time most would be Python's, and where many children take turns on
 * a core, all of that Python is cold in its caches. So what Python has compiled once -- a
 * signature, and calls of it that are ready to be made again -- is followed here: the arguments are
 * held against the signature, their addresses written into the block, the message sent, the reply
 * awaited without the GIL, and views over the output buffer returned. Whatever is unusual (a
 * signal, a full window, an error, a result of another kind, calls that others have out) is left to
 * Python: shmgpu/child/port.py does any call, and shmgpu/child/quick.py says when this one is used.
 *
 * It uses CPython's limited API of 3.10, so that one wheel serves all versions. That has neither
 * vectorcall nor the buffer protocol: calls come by tp_call, and arrays are read where NumPy has
 * them (ndarray.c). A prototype with vectorcall and NumPy's own headers, which would need a wheel
 * for each version, took 42.9 us of processor time a call where this takes 45.3, and Python 63.8 (8
 * children, all roles; of a lone caller 51.2, 53.2 and 81.4). It needs the GIL.
 *
 * Files: ndarray.c, tensor.c, signature.c: what arguments are; form.c, plain.c: containers and plain values;
 * ready.c: what is kept of an earlier call; call.c: the call itself; submit.c: calls that are sent
 * without waiting, and their ends; future.c, wake.c: what their callers hold, and sleep on; known.c: the
 * same call in a helper.
 *
 * Owns: the module's types and what its files share. Must never: do what a call through Python
 * would not.
 */
#ifndef SHMGPU_PYTHON_QUICK_H
#define SHMGPU_PYTHON_QUICK_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "shmgpu.h"

enum { SHMI_QUICK_ARRAYS = 16, SHMI_QUICK_VALUES = 16 }; /* of one call's arguments, at most */

/* The type of a tensor's elements, as DLPack has it. */
typedef struct {
  uint8_t code, bits;
} quick_tensor_kind_t;

/* What is looked at of the port, a shmgpu.child.port.Port, which is made of this. */
typedef struct {
  PyObject_HEAD
  PyObject *out;       /* a dict: calls that are out, by number */
  PyObject *struck;    /* a deque: calls that exceptions have struck */
  PyObject *queue;     /* a deque: calls that wait for the window */
  PyObject *reader;    /* a thread, or None */
  PyObject *closed;    /* why no call can be made any more, or None */
  PyObject *numbers;   /* an iterator: of tickets */
  PyObject *arguments; /* what its plans belong to */
  PyObject *look;      /* called before each call, or None */
  char rejoins;        /* a call after the broker is gone joins another */
} quick_port_t;

/* What a shmgpu.functions.Function is made of. */
typedef struct {
  PyObject_HEAD
  PyObject *plans_port; /* what its plans belong to, or None */
  PyObject *signatures; /* a list of quick_signature_t, or None */
} quick_function_t;

/* A call that is ready to be made again, and the output buffer that it will use. */
typedef struct {
  PyObject_HEAD
  PyObject *call;   /* a shmgpu.child.plans.Call */
  PyObject *recipe; /* holds `repeat` */
  const shm_repeat_t *repeat;
  PyObject *values; /* a tuple: plain values in the block */
  bool has_places;  /* each of them has its bytes there, whatever it is: they are written anew */
  PyObject *buffer; /* the output buffer, */
  uint64_t room;    /* and its address */
  PyObject *arrays; /* a tuple: over it, what a result is made of; () where it is one plain value */
  PyObject *views;  /* their methods: these two are all that refers to an array while it is free;
                       NULL: it serves no more */
  PyObject *form;   /* a result with the number of an array in place of each */
  PyObject *make;   /* makes of an array what the caller gets, or None */
  uint64_t staged[SHMI_QUICK_ARRAYS]; /* where arguments from elsewhere are copied to, or 0 */
} quick_call_t;

/* One submitted call: what a shmgpu.child.tickets.Ticket is made of, which says what these are. Where
 * it was sent from here, `ready` is what it was made of, `list` where that goes at its end, and
 * `sequence` its message's. */
typedef struct {
  PyObject_HEAD
  PyObject *call, *handler, *number, *sent, *deadline_ns, *keep, *loans, *offers, *error;
  PyObject *ready, *list;
  uint64_t sequence;
  char is_watched, is_near;
} quick_ticket_t;

/* What a caller holds of it: see future.c. What these are, shmgpu.child.futures says. */
typedef struct {
  PyObject_HEAD
  PyObject *port, *ticket, *made, *state, *result, *error;
  PyObject *loop, *reader, *woken; /* of those that an event loop awaits */
} quick_future_t;

/* What was found of a call's arguments. Another thread, or a callback, may take out of a list what
 * was found in it: so all of it is held until the call has ended. */
typedef struct {
  uint64_t addresses[SHMI_QUICK_ARRAYS];
  PyObject *arrays[SHMI_QUICK_ARRAYS], *values[SHMI_QUICK_VALUES];
  int array_count, value_count;
} quick_found_t;

/* What calls have in common that can be made by the same ready calls: see signature.c. */
typedef struct quick_part quick_part_t;
typedef struct {
  PyObject_HEAD
  quick_part_t *parts;
  size_t count;
  PyObject *ready; /* a list of quick_call_t: the longest unused is the first */
} quick_signature_t;

/* What the module knows of Python's side. */
typedef struct {
  PyTypeObject *call, *signature, *function, *future, *wake; /* made here */
  PyTypeObject *ndarray;               /* given once, by bind() */
  PyTypeObject *tensor;                /* torch's, by know_tensor(); or NULL */
  PyObject *to_dlpack;                 /* its function, if there is the type */
  PyTypeObject *ticket;                /* Python's, by know_ticket(), as the next; or NULL */
  PyObject *loans;                     /* a dict: arrays that are read-only for now */
  PyObject *ended, *finished, *pending; /* what a future says that has ended, or not: by know_ends() */
  PyObject *running_loop;              /* asyncio._get_running_loop, by know_loop(), as the next; or NULL */
  PyObject *loop, *loop_reader;        /* the loop that called last, by a weak reference; what it looks at */
  PyObject *cancelled_error;           /* asyncio's, once a task slept; or NULL */
  int loop_fd;                         /* readable where it has something to do; -1: that is not known */
  quick_port_t *port;                  /* of this process as a child, by use(); or NULL */
  uint64_t base, end;                  /* of its arena */
  int (*repeat)(const shm_repeat_t *, const uint64_t *, uint64_t);
  int (*resubmit)(const shm_repeat_t *, const uint64_t *, uint64_t, uint64_t, uint64_t *);
  int (*is_near)(uint32_t, uint64_t);
  int (*await_reply)(uint32_t, uint64_t, uint64_t, int, shm_reply_t *);
  void (*put_back)(uint32_t, const shm_reply_t *);
  int (*is_lost)(void);
  void (*count_bytes)(int, uint64_t);
  /* Names of attributes. */
  PyObject *in_python, *renew, *stage, *set_values, *read, *go_on, *finish, *tidy, *poll, *pump,
      *start_reader, *append, *view, *numpy, *storage, *value_bytes, *addresses, *result, *out,
      *offered, *data, *requires_grad, *is_neg,
      *is_conj, *waiting, *loop_ready,
      *loop_timers, *loop_debug, *loop_stopping, *loop_factory, *timer_when, *looks, *call_soon, *context, *run,
      *give_up, *steps;
} quick_t;

extern quick_t shmi_quick;

/* ---- ndarray.c ---- */

/* Where its elements begin, if that is a C-contiguous array of this dtype and shape; else NULL. */
const void *shmi_array_data(PyObject *one, PyObject *dtype, int axes, const intptr_t *shape);
/* The same, if it is one like another array; and whether it is a view on something. */
const void *shmi_array_like(PyObject *one, PyObject *other);
bool shmi_array_is_view(PyObject *array);
/* Where the elements of a tensor are that is like an array, whose dtype is that kind. */
const void *shmi_tensor_like(PyObject *one, quick_tensor_kind_t kind, PyObject *array);
/* The dtype and the shape of an array, both borrowed from it; NULL: it is not C-contiguous. */
PyObject *shmi_array_type(PyObject *array, int *axes, const intptr_t **shape);
/* Whether a thing is an array with elements in the arena; whether it may be written to, and that from
 * now on it may or may not. */
bool shmi_array_is_here(PyObject *one);
bool shmi_array_may_write(PyObject *array);
void shmi_array_set_write(PyObject *array, bool may);
size_t shmi_array_bytes(void); /* of one, as far as is known here */
PyObject *shmi_set_writeable(PyObject *module, PyObject *given);
PyObject *shmi_reads_array(PyObject *module, PyObject *given);

/* ---- tensor.c ---- */

/* What tensors have whose arrays would have this dtype; false: none has that. */
bool shmi_tensor_kind(PyObject *dtype, quick_tensor_kind_t *kind);
/* Where its elements begin, if that is a contiguous tensor on the CPU of this kind and shape, whose
 * memory has what it has; else NULL, with an exception only where one struck. */
const void *shmi_tensor_data(PyObject *one, quick_tensor_kind_t kind, int axes,
                             const intptr_t *shape);
/* A tensor that says it has no such memory, or array, raised nothing; what else is raised meanwhile, as
 * by a signal handler, stays. */
void shmi_forget_refusal(void);
PyObject *shmi_know_tensor(PyObject *module, PyObject *given);

/* ---- form.c ---- */

/* What somebody else has may become shorter while something of it is looked at: so items are taken
 * one by one, and held. NULL: there is no such item any more. */
PyObject *shmi_item_of(PyObject *tuple_or_list, Py_ssize_t at);
/* The next item of a dict, and its key, both held; false: there is none. */
bool shmi_next_of(PyObject *dict, Py_ssize_t *place, PyObject **key, PyObject **item);

/* What is made of a form's numbers, by what makes a leaf; NULL, with an exception: that failed. */
typedef PyObject *(shmi_leaf_of_t)(const void *of, Py_ssize_t number);
PyObject *shmi_form_build(PyObject *form, shmi_leaf_of_t *leaf, const void *of);
/* Whether a value has that form, as is quickly seen; takes each leaf with its number. */
typedef bool(shmi_take_leaf_t)(void *into, Py_ssize_t number, PyObject *leaf);
bool shmi_form_take(PyObject *form, PyObject *value, shmi_take_leaf_t *leaf, void *into);

/* ---- plain.c ---- */

/* How many bytes a value takes if it is None, a bool, a float or an int of 64 bits; -1 if not. */
Py_ssize_t shmi_value_bytes(PyObject *value);
/* Writes such a value; false: it is an int that takes more. */
bool shmi_write_value(PyObject *value, unsigned char **at);
/* A result that is one such value: read, NULL, perhaps with an exception, where it is something else;
 * written, how many bytes it took, 0 where it is not, or there is no room. */
PyObject *shmi_read_lone(const unsigned char *from, uint64_t bytes);
uint64_t shmi_write_lone(PyObject *value, unsigned char *to, uint64_t room);

/* ---- known.c ---- */

int shmi_add_known(PyObject *module);

/* ---- signature.c ---- */

/* The first of a list of signatures that such arguments have, and what was found of them, which
 * shmi_let_go() gives back; NULL, with an exception only where one struck: none has. */
quick_signature_t *shmi_signature_of(PyObject *signatures, PyObject *args, PyObject *named,
                                     quick_found_t *found);
void shmi_let_go(quick_found_t *found);
PyObject *shmi_arrays_of(const quick_found_t *found); /* as a tuple: arrays, and what tensors are of */
PyObject *shmi_values_of(const quick_found_t *found); /* plain values, as a tuple */
PyObject *shmi_find(PyObject *module, PyObject *given);
int shmi_add_signature(PyObject *module);

/* ---- ready.c ---- */

/* Takes one out of the ready calls of a signature; NULL, perhaps with an exception: there is none. */
quick_call_t *shmi_take(PyObject *list);
/* Puts into its block, or into its memory, what such arguments have that others had not: whether it
 * can be sent; if not, perhaps with an exception. */
bool shmi_fill(quick_call_t *ready, quick_found_t *found);
/* What the caller gets of the arrays that a helper has written. */
PyObject *shmi_result(const quick_call_t *ready);
/* What the caller gets of one plain value that a helper has written; NULL, perhaps without an
 * exception: it is something else. */
PyObject *shmi_lone_value(const quick_call_t *ready);
int shmi_add_ready(PyObject *module);

/* It was taken, and not used after all. */
void shmi_put_back(PyObject *list, quick_call_t *ready);
/* What the block has of plain values is not what the call was last told: whoever uses it next writes
 * them. Runs no Python code. */
bool shmi_forget_values(const quick_call_t *ready);
PyObject *shmi_addresses_of(const quick_call_t *ready, const uint64_t *addresses); /* as a tuple */

/* ---- call.c ---- */

/* Whether calls of such a function may be made here, by this port. */
bool shmi_may_send(const quick_port_t *port, const PyObject *function);
/* Sends what waited for the end of a call that has just ended; false, with an exception: it struck. */
bool shmi_pump(quick_port_t *port);
int shmi_add_call(PyObject *module);

/* ---- submit.c ---- */

PyObject *shmi_submit(PyObject *module, PyObject *given);
PyObject *shmi_start(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *shmi_start_awaited(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *shmi_await_end(PyObject *module, PyObject *given);
/* Where its loop has nothing else to do, whether its call has ended before there was something; None
 * where it has, or such waits were in vain lately; NULL where something struck. */
PyObject *shmi_await_in_place(quick_future_t *future);
PyObject *shmi_read_alone(PyObject *module, PyObject *given);
PyObject *shmi_future_result(PyObject *module, PyObject *future);
PyObject *shmi_settle(PyObject *module, PyObject *given);
PyObject *shmi_know_ticket(PyObject *module, PyObject *given);
PyObject *shmi_know_ends(PyObject *module, PyObject *given);
int shmi_add_ticket(PyObject *module);

/* ---- future.c ---- */

quick_future_t *shmi_new_future(PyTypeObject *type); /* or one derived from it */
/* Whether whoever is to be told of an end has waited for nothing but that. */
bool shmi_is_unmade(PyObject *handler);
void shmi_set(PyObject **field, PyObject *value);
int shmi_add_future(PyObject *module);

/* ---- wake.c ---- */

/* The running loop, where it is the one that called last, and is to look before long for the ends of
 * calls that nobody awaits, and what it looks at, both held; else NULL. */
PyObject *shmi_loop_that_looks(PyObject **reader);
PyObject *shmi_know_loop(PyObject *module, PyObject *given);
/* Whether the loop of a future, the one that called last, has nothing to do now, nor waits for another
 * call; until when, at most until `until_ns`. False perhaps with an exception. */
bool shmi_loop_idles(const quick_future_t *future, uint64_t now_ns, uint64_t *until_ns);
/* Whether something has come for it to do: whoever finds its answer each time before it would wait for
 * it does not see that. So every eighth looks. */
bool shmi_loop_has_its_turn(void);
bool shmi_go_on(PyObject *wake); /* whether whoever sleeps on it could go on; or with an exception */
int shmi_add_wake(PyObject *module);

/* ---- what was said ---- */

/* Whether that is None, True or False, of which there is one each. Lets go of what was said; NULL: it
 * is neither, and an exception says why. */
static inline bool shmi_is(PyObject *said, PyObject *wanted) {
  Py_XDECREF(said);
  return said == wanted;
}

/* ---- objects that Python derives from ---- */

static inline void shmi_free_object(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

#endif
