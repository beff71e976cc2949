/* signature -- what calls have in common that can be made by the same ready calls. See quick.h.
 *
 * The arguments are a tree. A signature has a part for each node of it, each before what is in it:
 * so a call's arguments are held against it by one walk over both, which also gathers the addresses
 * of its arrays, in the order in which a block names them.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "python/quick/quick.h"

#include <structmember.h>

enum { DEPTH = 4, PARTS = 64 };

struct quick_part {
  PyObject *type;  /* of an array: its dtype; of a container: its type */
  int count;       /* of axes, or of things in it */
  bool is_array;
  intptr_t *shape; /* of an array */
};

typedef struct {
  const quick_part_t *part, *end;
  uint64_t *addresses;
  int arrays;
} walk_t;

/* ---- holding arguments against it ---------------------------------------------------------- */

static bool fits(walk_t *walk, PyObject *one) {
  if (walk->part == walk->end) return false;
  const quick_part_t *part = walk->part++;
  if (part->is_array) {
    const void *data = shmi_array_data(one, part->type, part->count, part->shape);
    if (data == NULL) return false;
    walk->addresses[walk->arrays++] = (uint64_t)(uintptr_t)data;
    return true;
  }
  if ((PyObject *)Py_TYPE(one) != part->type) return false;
  Py_ssize_t count = PyTuple_Size(one);
  if (count != part->count) return false;
  for (Py_ssize_t at = 0; at < count; at++) {
    if (!fits(walk, PyTuple_GetItem(one, at))) return false;
  }
  return true;
}

static bool has_signature(const quick_signature_t *signature, PyObject *args, PyObject *named,
                          uint64_t *addresses) {
  walk_t walk = {.part = signature->parts,
                 .end = signature->parts + signature->count,
                 .addresses = addresses};
  if (named != NULL && PyDict_Size(named) > 0) return false;
  return fits(&walk, args) && walk.part == walk.end;
}

quick_signature_t *shmi_signature_of(PyObject *signatures, PyObject *args, PyObject *named,
                                     uint64_t *addresses) {
  for (Py_ssize_t at = 0; at < PyList_Size(signatures); at++) {
    PyObject *one = PyList_GetItem(signatures, at);
    if (Py_TYPE(one) != shmi_quick.signature) continue;
    quick_signature_t *signature = (quick_signature_t *)one;
    if (has_signature(signature, args, named, addresses)) return signature;
  }
  return NULL;
}

/* find(signatures, args, named): the one that such arguments have, or None. */
PyObject *shmi_find(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *signatures, *args, *named;
  uint64_t addresses[SHMI_QUICK_ARRAYS];
  if (!PyArg_ParseTuple(given, "O!O!O!", &PyList_Type, &signatures, &PyTuple_Type, &args,
                        &PyDict_Type, &named)) {
    return NULL;
  }
  PyObject *found = (PyObject *)shmi_signature_of(signatures, args, named, addresses);
  return Py_NewRef(found != NULL ? found : Py_None);
}

/* ---- making one ---------------------------------------------------------------------------- */

static bool is_native(PyObject *dtype) {
  PyObject *native = PyObject_GetAttrString(dtype, "isnative");
  bool is = native != NULL && PyObject_IsTrue(native) > 0;
  Py_XDECREF(native);
  PyErr_Clear();
  return is;
}

/* Adds the parts of a tree: false where it cannot be called so. */
static bool take_apart(quick_signature_t *signature, PyObject *one, int *arrays, int depth) {
  if (signature->count == PARTS || depth > DEPTH) return false;
  quick_part_t *part = &signature->parts[signature->count];
  if (Py_TYPE(one) == shmi_quick.ndarray) {
    const intptr_t *shape;
    int axes;
    PyObject *dtype = shmi_array_type(one, &axes, &shape);
    if (++*arrays > SHMI_QUICK_ARRAYS || !is_native(dtype)) return false;
    size_t bytes = (size_t)axes * sizeof *shape;
    part->shape = malloc(bytes + 1);
    if (part->shape == NULL) return false;
    if (bytes > 0) memcpy(part->shape, shape, bytes);
    part->is_array = true;
    part->count = axes;
    part->type = Py_NewRef(dtype);
    signature->count++;
    return true;
  }
  if (Py_TYPE(one) != &PyTuple_Type) return false;
  part->type = Py_NewRef((PyObject *)Py_TYPE(one));
  part->count = (int)PyTuple_Size(one);
  signature->count++;
  for (Py_ssize_t at = 0; at < PyTuple_Size(one); at++) {
    if (!take_apart(signature, PyTuple_GetItem(one, at), arrays, depth + 1)) return false;
  }
  return true;
}

/* Signature(args, named): that of calls with such arguments; ValueError where there is none. */
static PyObject *signature_new(PyTypeObject *type, PyObject *given, PyObject *named_given) {
  PyObject *args, *named;
  (void)named_given;
  if (!PyArg_ParseTuple(given, "O!O!", &PyTuple_Type, &args, &PyDict_Type, &named)) return NULL;
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  quick_signature_t *made = (quick_signature_t *)allocate(type, 0);
  if (made == NULL) return NULL;
  made->ready = PyList_New(0);
  made->parts = calloc(PARTS, sizeof *made->parts);
  int arrays = 0;
  bool is_whole = made->ready != NULL && made->parts != NULL && PyDict_Size(named) == 0 &&
                  take_apart(made, args, &arrays, 0);
  if (is_whole && arrays > 0) return (PyObject *)made;
  Py_DECREF(made);
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "such calls are made through Python");
  return NULL;
}

static int signature_traverse(quick_signature_t *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(self->ready);
  return 0;
}

static int signature_clear(quick_signature_t *self) {
  Py_CLEAR(self->ready);
  return 0;
}

static void signature_dealloc(quick_signature_t *self) {
  PyObject_GC_UnTrack(self);
  Py_CLEAR(self->ready);
  for (size_t at = 0; self->parts != NULL && at < self->count; at++) {
    Py_XDECREF(self->parts[at].type);
    free(self->parts[at].shape);
  }
  free(self->parts);
  shmi_free_object((PyObject *)self);
}

static PyMemberDef members[] = {
    {"ready", T_OBJECT_EX, offsetof(quick_signature_t, ready), READONLY, NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_new, signature_new},
    {Py_tp_dealloc, signature_dealloc},
    {Py_tp_traverse, signature_traverse},
    {Py_tp_clear, signature_clear},
    {Py_tp_members, members},
    {Py_tp_doc, "What calls have in common that can be made by the same ready calls."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "shmgpu._quick.Signature",
    .basicsize = sizeof(quick_signature_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int shmi_add_signature(PyObject *module) {
  PyObject *type = PyType_FromSpec(&spec);
  if (type == NULL) return -1;
  shmi_quick.signature = (PyTypeObject *)type;
  Py_INCREF(type);
  return PyModule_AddObject(module, "Signature", type);
}
