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

enum { DEPTH = 4, PARTS = 64, KEYS = 32 };

enum kind { ARRAY, TENSOR, VALUE, TUPLE, LIST, DICT };

struct quick_part {
  enum kind kind;
  int count;       /* of axes, or of things in it */
  PyObject *type;  /* its dtype, if it is an array or a tensor; else its type */
  intptr_t *shape; /* of an array or a tensor */
  quick_tensor_kind_t elements; /* of a tensor */
  PyObject *names; /* of a dict: a tuple */
};

typedef struct {
  const quick_part_t *part, *end;
  quick_found_t *found;
} walk_t;

/* ---- holding arguments against it ---------------------------------------------------------- */

static const void *data_of(PyObject *one, const quick_part_t *part) {
  return part->kind == ARRAY ? shmi_array_data(one, part->type, part->count, part->shape)
                             : shmi_tensor_data(one, part->elements, part->count, part->shape);
}

static bool is_name(PyObject *key, PyObject *name) {
  return key == name || (PyUnicode_CheckExact(key) && PyUnicode_Compare(key, name) == 0);
}

static bool fits(walk_t *walk, PyObject *one);

static bool items_fit(walk_t *walk, PyObject *one, const quick_part_t *part) {
  bool do_fit = true;
  if (part->kind == DICT) {
    PyObject *key, *item;
    Py_ssize_t place = 0;
    if (PyDict_Size(one) != part->count) return false;
    for (Py_ssize_t at = 0; do_fit && at < part->count; at++) {
      if (!shmi_next_of(one, &place, &key, &item)) return false;
      do_fit = is_name(key, PyTuple_GetItem(part->names, at)) && fits(walk, item);
      Py_DECREF(key);
      Py_DECREF(item);
    }
    return do_fit;
  }
  if ((part->kind == TUPLE ? PyTuple_Size(one) : PyList_Size(one)) != part->count) return false;
  for (Py_ssize_t at = 0; do_fit && at < part->count; at++) {
    PyObject *item = shmi_item_of(one, at);
    do_fit = item != NULL && fits(walk, item);
    Py_XDECREF(item);
  }
  return do_fit;
}

static bool fits(walk_t *walk, PyObject *one) {
  quick_found_t *found = walk->found;
  if (walk->part == walk->end) return false;
  const quick_part_t *part = walk->part++;
  if (part->kind == ARRAY || part->kind == TENSOR) {
    found->arrays[found->array_count] = Py_NewRef(one); /* data_of() may run Python code */
    const void *data = data_of(one, part);
    found->addresses[found->array_count++] = (uint64_t)(uintptr_t)data;
    return data != NULL;
  }
  if ((PyObject *)Py_TYPE(one) != part->type) return false;
  if (part->kind == VALUE) {
    found->values[found->value_count++] = Py_NewRef(one);
    return true;
  }
  return items_fit(walk, one, part);
}

void shmi_let_go(quick_found_t *found) {
  for (int at = 0; at < found->array_count; at++) Py_DECREF(found->arrays[at]);
  for (int at = 0; at < found->value_count; at++) Py_DECREF(found->values[at]);
  found->array_count = found->value_count = 0;
}

static PyObject *tuple_of(PyObject *const *items, int count) {
  PyObject *made = PyTuple_New(count);
  for (int at = 0; made != NULL && at < count; at++) PyTuple_SetItem(made, at, Py_NewRef(items[at]));
  return made;
}

PyObject *shmi_arrays_of(const quick_found_t *found) {
  return tuple_of(found->arrays, found->array_count);
}

PyObject *shmi_values_of(const quick_found_t *found) {
  return tuple_of(found->values, found->value_count);
}

static bool has_signature(const quick_signature_t *signature, PyObject *args, PyObject *named,
                          quick_found_t *found) {
  walk_t walk = {
      .part = signature->parts, .end = signature->parts + signature->count, .found = found};
  found->array_count = found->value_count = 0;
  bool is = fits(&walk, args) && (named == NULL || PyDict_Size(named) == 0 || fits(&walk, named));
  if (is && walk.part == walk.end) return true;
  shmi_let_go(found);
  return false;
}

quick_signature_t *shmi_signature_of(PyObject *signatures, PyObject *args, PyObject *named,
                                     quick_found_t *found) {
  quick_signature_t *signature = NULL;
  Py_INCREF(signatures);
  for (Py_ssize_t at = 0; signature == NULL && at < PyList_Size(signatures); at++) {
    PyObject *one = PyList_GetItem(signatures, at);
    if (Py_TYPE(one) != shmi_quick.signature) continue;
    signature = (quick_signature_t *)Py_NewRef(one);
    if (!has_signature(signature, args, named, found)) Py_CLEAR(signature);
    if (PyErr_Occurred()) break;
  }
  Py_DECREF(signatures);
  return signature;
}

/* find(signatures, args, named): the one that such arguments have, their arrays and their plain
 * values, which are tuples; or None. */
PyObject *shmi_find(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *signatures, *args, *named;
  quick_found_t found;
  if (!PyArg_ParseTuple(given, "O!O!O!", &PyList_Type, &signatures, &PyTuple_Type, &args,
                        &PyDict_Type, &named)) {
    return NULL;
  }
  quick_signature_t *signature = shmi_signature_of(signatures, args, named, &found);
  if (signature == NULL) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
  PyObject *result = Py_BuildValue("(NNN)", (PyObject *)signature, shmi_arrays_of(&found),
                                   shmi_values_of(&found));
  shmi_let_go(&found);
  return result;
}

/* ---- making one ---------------------------------------------------------------------------- */

static bool is_native(PyObject *dtype) {
  PyObject *native = PyObject_GetAttrString(dtype, "isnative");
  bool is = native != NULL && PyObject_IsTrue(native) > 0;
  Py_XDECREF(native);
  PyErr_Clear();
  return is;
}

static void drop_parts(quick_part_t *parts, size_t count) {
  for (size_t at = 0; at < count; at++) {
    Py_XDECREF(parts[at].type);
    Py_XDECREF(parts[at].names);
    free(parts[at].shape);
  }
}

typedef struct {
  quick_part_t parts[PARTS];
  size_t count;
  int arrays, values;
  PyObject *plain; /* the types of plain values, a frozenset */
} making_t;

static bool take_apart(making_t *making, PyObject *one, int depth);

static bool add_array(making_t *making, quick_part_t *part, PyObject *array) {
  const intptr_t *shape;
  PyObject *dtype = shmi_array_type(array, &part->count, &shape);
  if (++making->arrays > SHMI_QUICK_ARRAYS || dtype == NULL || !is_native(dtype)) return false;
  size_t bytes = (size_t)part->count * sizeof *shape;
  part->shape = malloc(bytes + 1);
  if (part->shape == NULL) return false;
  if (bytes > 0) memcpy(part->shape, shape, bytes);
  part->type = Py_NewRef(dtype);
  return true;
}

static bool add_tensor(making_t *making, quick_part_t *part, PyObject *tensor) {
  PyObject *array = PyObject_CallMethodObjArgs(tensor, shmi_quick.numpy, NULL);
  if (array == NULL) shmi_forget_refusal();
  bool is_added = array != NULL && Py_TYPE(array) == shmi_quick.ndarray &&
                  add_array(making, part, array) && shmi_tensor_kind(part->type, &part->elements);
  Py_XDECREF(array);
  return is_added;
}

static bool add_dict(making_t *making, quick_part_t *part, PyObject *one, int depth) {
  PyObject *key, *item;
  Py_ssize_t place = 0;
  if (PyDict_Size(one) > KEYS) return false;
  part->count = (int)PyDict_Size(one);
  part->names = PyTuple_New(part->count);
  bool is_added = part->names != NULL;
  for (Py_ssize_t at = 0; is_added && at < part->count; at++) {
    if (!shmi_next_of(one, &place, &key, &item)) return false;
    is_added = PyUnicode_CheckExact(key) &&
               PyTuple_SetItem(part->names, at, Py_NewRef(key)) == 0 &&
               take_apart(making, item, depth);
    Py_DECREF(key);
    Py_DECREF(item);
  }
  return is_added;
}

/* Adds the parts of a tree: false where it cannot be called so. */
static bool take_apart(making_t *making, PyObject *one, int depth) {
  if (making->count == PARTS || depth > DEPTH) return false;
  quick_part_t *part = &making->parts[making->count++];
  PyTypeObject *type = Py_TYPE(one);
  if (type == shmi_quick.ndarray || type == shmi_quick.tensor) {
    part->kind = type == shmi_quick.ndarray ? ARRAY : TENSOR;
    return part->kind == ARRAY ? add_array(making, part, one) : add_tensor(making, part, one);
  }
  part->type = Py_NewRef((PyObject *)type);
  if (type == &PyDict_Type) {
    part->kind = DICT;
    return add_dict(making, part, one, depth + 1);
  }
  if (type != &PyTuple_Type && type != &PyList_Type) {
    part->kind = VALUE;
    return ++making->values <= SHMI_QUICK_VALUES && PySet_Contains(making->plain, part->type) > 0;
  }
  part->kind = type == &PyTuple_Type ? TUPLE : LIST;
  Py_ssize_t count = part->kind == TUPLE ? PyTuple_Size(one) : PyList_Size(one);
  bool is_added = count <= PARTS; /* more than there is room for */
  part->count = (int)count;
  for (Py_ssize_t at = 0; is_added && at < count; at++) {
    PyObject *item = shmi_item_of(one, at);
    is_added = item != NULL && take_apart(making, item, depth + 1);
    Py_XDECREF(item);
  }
  return is_added;
}

/* Signature(args, named, plain): that of calls with such arguments; ValueError where there is none.
 * `plain` is a frozenset of the types of plain values. */
static PyObject *signature_new(PyTypeObject *type, PyObject *given, PyObject *named_given) {
  PyObject *args, *named, *plain;
  (void)named_given;
  if (!PyArg_ParseTuple(given, "O!O!O!", &PyTuple_Type, &args, &PyDict_Type, &named,
                        &PyFrozenSet_Type, &plain)) {
    return NULL;
  }
  making_t making = {.plain = plain};
  quick_signature_t *made = NULL;
  bool is_whole = take_apart(&making, args, 0) &&
                  (PyDict_Size(named) == 0 || take_apart(&making, named, 0));
  if (is_whole) {
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    made = (quick_signature_t *)allocate(type, 0);
  } else if (!PyErr_Occurred()) {
    PyErr_SetString(PyExc_ValueError, "such calls are made through Python");
  }
  quick_part_t *parts = made != NULL ? malloc(making.count * sizeof *parts) : NULL;
  if (parts == NULL) {
    drop_parts(making.parts, making.count);
    Py_XDECREF((PyObject *)made);
    return PyErr_Occurred() ? NULL : PyErr_NoMemory();
  }
  memcpy(parts, making.parts, making.count * sizeof *parts);
  made->parts = parts; /* with all that they refer to */
  made->count = making.count;
  made->ready = PyList_New(0);
  if (made->ready == NULL) Py_CLEAR(made);
  return (PyObject *)made;
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
  drop_parts(self->parts, self->count);
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
