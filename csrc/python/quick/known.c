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
  PyObject *args, *named;   /* forms: a tuple; a dict or None. Array n is n, plain value n is -1 - n,
                               and the helper follows the last array */
  PyObject *views, *values; /* tuples: what makes each array, or has each tensor; and each value */
  PyObject *result;         /* a form of arrays, or None: nothing is promised */
  PyObject *outs, *rooms;   /* tuples: arrays over the output buffer, and what makes others alike */
  quick_tensor_kind_t kinds[SHMI_QUICK_ARRAYS]; /* of these, if it returns torch's tensors */
  uint64_t address, bytes;  /* of the output buffer */
  uint64_t sizes[SHMI_QUICK_ARRAYS]; /* of each array in it, in bytes */
  uint64_t function; /* what its messages have for it */
  uint32_t slot;     /* of the child that sends them */
  char is_declared, is_batched; /* the function gets `rooms` to write to; its calls may be merged */
  char is_torch;                /* it returns torch's tensors */
  uint64_t written;             /* by the last run, where that described itself */
} known_t;

/* What a result has in place of each array that was promised. Somebody may change the result
 * meanwhile: so what was taken of it is held. */
typedef struct {
  const known_t *known;
  Py_ssize_t count;
  const void *found[SHMI_QUICK_ARRAYS];
  PyObject *leaves[SHMI_QUICK_ARRAYS];
} taken_t;

/* What makes the arguments, and for which helper. */
typedef struct {
  const known_t *known;
  PyObject *helper;
} given_t;

static PyObject *argument_of(const void *of, Py_ssize_t at) {
  const given_t *given = of;
  const known_t *known = given->known;
  if (at < 0) return Py_NewRef(PyTuple_GetItem(known->values, -1 - at));
  if (at == PyTuple_Size(known->views)) return Py_NewRef(given->helper);
  PyObject *view = PyTuple_GetItem(known->views, at);
  return known->is_torch ? PyObject_GetAttr(view, shmi_quick.data) : PyObject_CallNoArgs(view);
}

static PyObject *room_of(const void *of, Py_ssize_t at) {
  return PyObject_CallNoArgs(PyTuple_GetItem(((const known_t *)of)->rooms, at));
}

/* ---- the result ------------------------------------------------------------------------------- */

static bool take_leaf(void *into, Py_ssize_t at, PyObject *leaf) {
  taken_t *taken = into;
  const known_t *known = taken->known;
  PyObject *out = PyTuple_GetItem(known->outs, at);
  const void *found = known->is_torch ? shmi_tensor_like(leaf, known->kinds[at], out)
                                      : shmi_array_like(leaf, out);
  if (found == NULL || at != taken->count) return false;
  taken->found[at] = found;
  taken->leaves[taken->count++] = Py_NewRef(leaf);
  /* A view elsewhere of what it was given to write to: copying in order might destroy it. */
  return !known->is_declared || found == shmi_array_like(out, out) ||
         !(known->is_torch || shmi_array_is_view(leaf));
}

static void copy_out(const taken_t *taken) {
  const known_t *known = taken->known;
  for (Py_ssize_t at = 0; at < taken->count; at++) {
    PyObject *out = PyTuple_GetItem(known->outs, at);
    void *to = (void *)(uintptr_t)shmi_array_like(out, out);
    if (to == taken->found[at]) continue;
    memmove(to, taken->found[at], (size_t)known->sizes[at]);
    shmi_quick.count_bytes(SHM_BYTES_COPIED_OUT, known->sizes[at]);
  }
}

static bool put_arrays(const known_t *known, PyObject *result) {
  if (known->result == Py_None) return false;
  taken_t taken = {.known = known};
  /* The promise is the caller's: whatever it says, nothing is copied that was not found. */
  bool is_kept = shmi_form_take(known->result, result, take_leaf, &taken) &&
                 taken.count == PyTuple_Size(known->outs);
  if (is_kept) copy_out(&taken);
  while (taken.count > 0) Py_DECREF(taken.leaves[--taken.count]);
  return is_kept;
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

/* The function gets what it may write to: an attribute `out` where that was declared, and what makes
 * a `room` where it is one array. */
static bool offer(const known_t *known, PyObject *helper) {
  PyObject *room = Py_None;
  if (known->is_declared) {
    PyObject *out = shmi_form_build(known->result, room_of, known);
    bool is_set = out != NULL && PyObject_SetAttr(helper, shmi_quick.out, out) == 0;
    Py_XDECREF(out);
    if (!is_set) return false;
  } else if (PyLong_CheckExact(known->result)) {
    room = PyTuple_GetItem(known->rooms, PyLong_AsSsize_t(known->result));
  }
  return room != NULL && PyObject_SetAttr(helper, shmi_quick.offered, room) == 0;
}

static PyObject *call(const known_t *known, PyObject *helper) {
  const given_t given = {.known = known, .helper = helper};
  PyObject *args = shmi_form_build(known->args, argument_of, &given), *named = NULL;
  bool has_named = known->named != Py_None;
  if (args != NULL && has_named) named = shmi_form_build(known->named, argument_of, &given);
  PyObject *result = NULL;
  if (args != NULL && (named != NULL || !has_named)) {
    result = PyObject_Call(known->body, args, named);
  }
  Py_XDECREF(named);
  Py_XDECREF(args);
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
  for (Py_ssize_t at = 0; is_torch && at < PyTuple_Size(is.outs) && at < SHMI_QUICK_ARRAYS; at++) {
    PyObject *dtype = PyObject_GetAttrString(PyTuple_GetItem(is.outs, at), "dtype");
    if (dtype != NULL) shmi_tensor_kind(dtype, &made->kinds[at]);
    Py_XDECREF(dtype);
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
