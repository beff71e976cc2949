/* known -- a call that a helper has read before, run as it lies: its arguments made, its function
 * called, its result put where the caller looks for it. See quick.h.
 *
 * What shmgpu/helper/executor.py does for any call, in one step for those whose block was the same
 * before: arrays and plain values in plain containers in; arrays as promised, or one plain value,
 * out. What the function gives instead is Python's to put.
 */
#include <stddef.h>

#include "python/quick/quick.h"

#include <structmember.h>

typedef struct {
  PyObject_HEAD
  PyObject *body;           /* the function */
  PyObject *args, *named;   /* forms: a tuple; a dict or None. Array n is n, plain value n is -1 - n */
  PyObject *views, *values; /* tuples: what makes each array, and each value */
  PyObject *result;         /* a form of arrays, or None: nothing is promised */
  PyObject *outs, *rooms;   /* tuples: arrays over the output buffer, and what makes others alike */
  uint64_t address, bytes;  /* of the output buffer */
  uint64_t sizes[SHMI_QUICK_ARRAYS]; /* of each array in it, in bytes */
  uint64_t function; /* what its messages have for it */
  uint32_t slot;     /* of the child that sends them */
  char is_declared, is_batched; /* the function gets `rooms` to write to; its calls may be merged */
  char is_torch;                /* it returns torch's tensors */
  uint64_t written;             /* by the last run, where that described itself */
} known_t;

/* What a result has in place of each array that was promised. */
typedef struct {
  const known_t *known;
  const void *found[SHMI_QUICK_ARRAYS];
} taken_t;

static PyObject *argument_of(const void *of, Py_ssize_t at) {
  const known_t *known = of;
  if (at < 0) return Py_NewRef(PyTuple_GetItem(known->values, -1 - at));
  return PyObject_CallNoArgs(PyTuple_GetItem(known->views, at));
}

static PyObject *room_of(const void *of, Py_ssize_t at) {
  return PyObject_CallNoArgs(PyTuple_GetItem(((const known_t *)of)->rooms, at));
}

/* ---- the result ------------------------------------------------------------------------------- */

/* Where a tensor's elements are, which lives on; NULL: NumPy has no such, such as one with a gradient. */
static const void *tensor_like(PyObject *leaf, PyObject *out) {
  if (Py_TYPE(leaf) != shmi_quick.tensor) return NULL;
  PyObject *array = PyObject_CallMethodObjArgs(leaf, shmi_quick.numpy, NULL);
  const void *found = array != NULL ? shmi_array_like(array, out) : NULL;
  if (array == NULL) PyErr_Clear();
  Py_XDECREF(array);
  return found;
}

static bool take_leaf(void *into, Py_ssize_t at, PyObject *leaf) {
  taken_t *taken = into;
  const known_t *known = taken->known;
  PyObject *out = PyTuple_GetItem(known->outs, at);
  const void *found = known->is_torch ? tensor_like(leaf, out) : shmi_array_like(leaf, out);
  taken->found[at] = found;
  if (found == NULL) return false;
  /* A view elsewhere of what it was given to write to: copying in order might destroy it. */
  return !known->is_declared || found == shmi_array_like(out, out) ||
         !(known->is_torch || shmi_array_is_view(leaf));
}

static bool put_arrays(const known_t *known, PyObject *result) {
  taken_t taken = {.known = known};
  if (known->result == Py_None || !shmi_form_take(known->result, result, take_leaf, &taken)) {
    return false;
  }
  for (Py_ssize_t at = 0; at < PyTuple_Size(known->outs); at++) {
    PyObject *out = PyTuple_GetItem(known->outs, at);
    void *to = (void *)(uintptr_t)shmi_array_like(out, out);
    if (to == taken.found[at]) continue;
    memmove(to, taken.found[at], (size_t)known->sizes[at]);
    shmi_quick.count_bytes(SHM_BYTES_COPIED_OUT, known->sizes[at]);
  }
  return true;
}

/* Whether it was put where the caller looks for it. */
static bool put(known_t *known, PyObject *result) {
  known->written = 0;
  if (put_arrays(known, result)) return true;
  if (!known->is_batched) {
    unsigned char *to = (unsigned char *)(uintptr_t)known->address;
    known->written = shmi_write_lone(result, to, known->bytes);
    shmi_quick.count_bytes(SHM_BYTES_COPIED_OUT, known->written);
  }
  return known->written != 0;
}

/* ---- the run ---------------------------------------------------------------------------------- */

/* The function gets what it may write to: an attribute `out` where that was declared, `room` where
 * it is one array. */
static bool offer(const known_t *known, PyObject *helper) {
  bool is_one = PyLong_CheckExact(known->result);
  PyObject *made = known->is_declared || is_one ? shmi_form_build(known->result, room_of, known)
                                                : Py_NewRef(Py_None);
  bool is_done =
      made != NULL &&
      (!known->is_declared || PyObject_SetAttr(helper, shmi_quick.out, made) == 0) &&
      PyObject_SetAttr(helper, shmi_quick.room, known->is_declared ? Py_None : made) == 0;
  Py_XDECREF(made);
  return is_done;
}

static PyObject *call(const known_t *known, PyObject *helper) {
  PyObject *rest = shmi_form_build(known->args, argument_of, known), *named = NULL, *args = NULL;
  const Py_ssize_t count = rest != NULL ? PyTuple_Size(rest) : 0;
  if (rest != NULL) args = PyTuple_New(count + 1);
  if (args != NULL) PyTuple_SetItem(args, 0, Py_NewRef(helper));
  for (Py_ssize_t at = 0; args != NULL && at < count; at++) {
    PyTuple_SetItem(args, at + 1, Py_NewRef(PyTuple_GetItem(rest, at)));
  }
  if (known->named != Py_None) named = shmi_form_build(known->named, argument_of, known);
  PyObject *result = NULL;
  if (args != NULL && (named != NULL || known->named == Py_None)) {
    result = PyObject_Call(known->body, args, named);
  }
  Py_XDECREF(named);
  Py_XDECREF(args);
  Py_XDECREF(rest);
  return result;
}

/* The function wrote to what it was given, and returned nothing. */
static PyObject *or_out(PyObject *helper, PyObject *result) {
  if (result != Py_None) return result;
  Py_DECREF(result);
  return PyObject_GetAttr(helper, shmi_quick.out);
}

/* It is given nothing any more; an exception that there is stays. */
static void take_back(PyObject *helper) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject_SetAttr(helper, shmi_quick.out, Py_None);
  PyErr_Clear();
  PyErr_Restore(type, value, traceback);
}

/* run(helper): itself, where the result was put as promised, or as `written` bytes that describe it;
 * else what the function returned. Raises what the function raised. */
static PyObject *run(known_t *self, PyObject *helper) {
  PyObject *result = offer(self, helper) ? call(self, helper) : NULL;
  if (result != NULL && self->is_declared) result = or_out(helper, result);
  if (self->is_declared) take_back(helper);
  if (result == NULL || !put(self, result)) return result;
  Py_DECREF(result);
  return Py_NewRef((PyObject *)self);
}

/* ---- the type --------------------------------------------------------------------------------- */

/* QuickKnown(function, slot, body, args, named, views, values, result, outs, rooms, sizes, address,
 * bytes, is_declared, is_batched, is_torch). */
static PyObject *known_new(PyTypeObject *type, PyObject *given, PyObject *named) {
  (void)named;
  known_t is = {0};
  PyObject *sizes;
  unsigned long long function, address, bytes;
  int is_declared, is_batched, is_torch;
  if (!PyArg_ParseTuple(given, "KIOO!OO!O!OO!O!O!KKppp", &function, &is.slot, &is.body,
                        &PyTuple_Type, &is.args, &is.named, &PyTuple_Type, &is.views, &PyTuple_Type,
                        &is.values, &is.result, &PyTuple_Type, &is.outs, &PyTuple_Type, &is.rooms,
                        &PyTuple_Type, &sizes, &address, &bytes, &is_declared, &is_batched,
                        &is_torch)) {
    return NULL;
  }
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  known_t *made = (known_t *)allocate(type, 0);
  if (made == NULL) return NULL;
  made->function = function;
  made->slot = is.slot;
  made->body = Py_NewRef(is.body);
  made->args = Py_NewRef(is.args);
  made->named = Py_NewRef(is.named);
  made->views = Py_NewRef(is.views);
  made->values = Py_NewRef(is.values);
  made->result = Py_NewRef(is.result);
  made->outs = Py_NewRef(is.outs);
  made->rooms = Py_NewRef(is.rooms);
  made->address = address;
  made->bytes = bytes;
  made->is_declared = (char)is_declared;
  made->is_batched = (char)is_batched;
  made->is_torch = (char)is_torch;
  for (Py_ssize_t at = 0; at < PyTuple_Size(sizes) && at < SHMI_QUICK_ARRAYS; at++) {
    made->sizes[at] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(sizes, at));
  }
  if (PyTuple_Size(is.outs) > SHMI_QUICK_ARRAYS || PyErr_Occurred()) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "too many arrays");
    Py_CLEAR(made);
  }
  return (PyObject *)made;
}

static int known_traverse(known_t *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(self->body);
  Py_VISIT(self->args);
  Py_VISIT(self->named);
  Py_VISIT(self->views);
  Py_VISIT(self->values);
  Py_VISIT(self->result);
  Py_VISIT(self->outs);
  Py_VISIT(self->rooms);
  return 0;
}

static int known_clear(known_t *self) {
  Py_CLEAR(self->body);
  Py_CLEAR(self->args);
  Py_CLEAR(self->named);
  Py_CLEAR(self->views);
  Py_CLEAR(self->values);
  Py_CLEAR(self->result);
  Py_CLEAR(self->outs);
  Py_CLEAR(self->rooms);
  return 0;
}

static void known_dealloc(known_t *self) {
  PyObject_GC_UnTrack(self);
  known_clear(self);
  shmi_free_object((PyObject *)self);
}

static PyMethodDef methods[] = {
    {"run", (PyCFunction)run, METH_O, "Run it: itself, or a result that is still to be put."},
    {0},
};

static PyMemberDef members[] = {
    {"function", T_ULONGLONG, offsetof(known_t, function), READONLY, NULL},
    {"slot", T_UINT, offsetof(known_t, slot), READONLY, NULL},
    {"written", T_ULONGLONG, offsetof(known_t, written), READONLY, NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_new, known_new},
    {Py_tp_dealloc, known_dealloc},
    {Py_tp_traverse, known_traverse},
    {Py_tp_clear, known_clear},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_doc, "A call that a helper has read before; for shmgpu.helper.known."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "shmgpu._quick.QuickKnown",
    .basicsize = sizeof(known_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int shmi_add_known(PyObject *module) {
  PyObject *type = PyType_FromSpec(&spec);
  if (type == NULL) return -1;
  int status = PyModule_AddType(module, (PyTypeObject *)type);
  Py_DECREF(type);
  return status;
}
