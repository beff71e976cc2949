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
 * It uses CPython's limited API, so that one build serves all versions. What that lacks costs little:
 * tp_call instead of vectorcall is a tuple more for each call, 0.03 us of 30, and arrays are read
 * where NumPy has them (ndarray.c) instead of through the buffer protocol, which is slower. It needs
 * the GIL.
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

enum { SHMI_QUICK_ARRAYS = 16 }; /* arguments of one call that are arrays, at most */

/* What is looked at of the port, a shmgpu.child.port.Port, which is made of this. */
typedef struct {
  PyObject_HEAD
  PyObject *out;       /* a dict: calls that are out, by number */
  PyObject *struck;    /* a deque: calls that exceptions have struck */
  PyObject *queue;     /* a deque: calls that wait for the window */
  PyObject *reader;    /* a thread, or None */
  PyObject *arguments; /* what its plans belong to */
  PyObject *look;      /* called before each call, or None */
  char rejoins;        /* a call after the broker is gone joins another */
} quick_port_t;

/* What a shmgpu.functions.Function is made of. */
typedef struct {
  PyObject_HEAD
  PyObject *plans_port; /* what its plans belong to, or None */
  PyObject *signatures; /* a list of signature_t */
} quick_function_t;

/* A call that is ready to be made again, and the output buffer that it will use. */
typedef struct {
  PyObject_HEAD
  PyObject *call;   /* a shmgpu.child.plans.Call */
  PyObject *recipe; /* holds `repeat` */
  const shm_repeat_t *repeat;
  PyObject *owner;  /* holds the output buffer */
  uint64_t room;    /* its address */
  PyObject *result; /* an array over it: this and `view` are all that refer to it while it is free */
  PyObject *view;   /* its method */
} quick_call_t;

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
  PyTypeObject *call, *signature;      /* made here */
  PyTypeObject *ndarray;               /* given once, by bind() */
  quick_port_t *port;                  /* of this process as a child, by use(); or NULL */
  int (*repeat)(const shm_repeat_t *, const uint64_t *, uint64_t);
  int (*is_lost)(void);
  PyObject *in_python, *renew, *go_on, *finish, *tidy, *poll, *pump, *append, *view; /* names of methods */
} quick_t;

extern quick_t shmi_quick;

/* ---- ndarray.c ---- */

/* Where its elements begin, if that is a C-contiguous array of this dtype and shape; else NULL. */
const void *shmi_array_data(PyObject *one, PyObject *dtype, int axes, const intptr_t *shape);
/* The dtype and the shape of an array, both borrowed from it. */
PyObject *shmi_array_type(PyObject *array, int *axes, const intptr_t **shape);
size_t shmi_array_bytes(void); /* of one, as far as is known here */
PyObject *shmi_reads_array(PyObject *module, PyObject *given);

/* ---- signature.c ---- */

/* The first of a list of signatures that such arguments have, borrowed, and the addresses of their
 * arrays; NULL, without an exception, where none has. */
quick_signature_t *shmi_signature_of(PyObject *signatures, PyObject *args, PyObject *named,
                                     uint64_t *addresses);
PyObject *shmi_find(PyObject *module, PyObject *given);
int shmi_add_signature(PyObject *module);

/* ---- call.c ---- */

int shmi_add_call(PyObject *module);

/* ---- objects that Python derives from ---- */

static inline void shmi_free_object(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

#endif
