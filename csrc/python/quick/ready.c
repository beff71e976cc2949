/* ready -- what is kept of an earlier call, so that it can be made again: its block, which differs in
 * addresses and perhaps in plain values, and its output buffer with arrays over it. See quick.h.
 *
 * Python makes them, and does here what is done once (shmgpu/child/prepared.py): another output
 * buffer, memory for arguments from elsewhere, plain values that take other memory than before.
 */
#include "python/quick/quick.h"

#include <structmember.h>

#include <stddef.h>
#include <string.h>

/* ---- taking one ----------------------------------------------------------------------------- */

/* The tuple and its method refer to each array, and nobody else: no result is alive. */
static bool is_free(const quick_call_t *ready) {
  const Py_ssize_t count = PyTuple_Size(ready->arrays);
  for (Py_ssize_t at = 0; at < count; at++) {
    if (Py_REFCNT(PyTuple_GetItem(ready->arrays, at)) != 2) return false;
  }
  return true;
}

quick_call_t *shmi_take(PyObject *list) {
  const Py_ssize_t count = PyList_Size(list);
  quick_call_t *ready = NULL;
  Py_ssize_t at = 0;
  for (; at < count; at++) {
    PyObject *one = PyList_GetItem(list, at);
    if (!PyObject_TypeCheck(one, shmi_quick.call) || ((quick_call_t *)one)->views == NULL) continue;
    ready = (quick_call_t *)one;
    if (is_free(ready)) break;
  }
  bool has_free = at < count;
  /* One that takes no turns with another is joined by a second, as any call through Python ends. */
  if (ready == NULL || (!has_free && count < 2)) return NULL;
  if (!has_free) {
    at = 0;
    ready = (quick_call_t *)PyList_GetItem(list, at);
  }
  Py_INCREF(ready);
  bool is_taken = PyList_SetSlice(list, at, at + 1, NULL) == 0;
  if (is_taken && !has_free) {
    PyObject *done = PyObject_CallMethodObjArgs((PyObject *)ready, shmi_quick.renew, NULL);
    Py_XDECREF(done);
    is_taken = done == Py_True;
  }
  if (!is_taken) Py_CLEAR(ready);
  return ready;
}

void shmi_put_back(PyObject *list, quick_call_t *ready) {
  PyObject *kind, *value, *trace;
  PyErr_Fetch(&kind, &value, &trace);
  if (ready->views != NULL && PyList_Append(list, (PyObject *)ready) < 0) PyErr_Clear();
  PyErr_Restore(kind, value, trace);
}

PyObject *shmi_addresses_of(const quick_call_t *ready, const uint64_t *addresses) {
  PyObject *made = PyTuple_New((Py_ssize_t)ready->repeat->arguments);
  for (uint32_t at = 0; made != NULL && at < ready->repeat->arguments; at++) {
    PyObject *one = PyLong_FromUnsignedLongLong(addresses[at]);
    if (one == NULL || PyTuple_SetItem(made, (Py_ssize_t)at, one) < 0) Py_CLEAR(made);
  }
  return made;
}

/* ---- plain values --------------------------------------------------------------------------- */

/* Whether values take as many bytes as their types always do. */
static bool have_places(PyObject *values, Py_ssize_t bytes) {
  for (Py_ssize_t at = 0; at < PyTuple_Size(values); at++) {
    Py_ssize_t own = shmi_value_bytes(PyTuple_GetItem(values, at));
    if (own < 0) return false;
    bytes -= own;
  }
  return bytes == 0;
}

static bool write_values(quick_call_t *ready, const quick_found_t *found) {
  const shm_block_t *block = (const shm_block_t *)(uintptr_t)ready->repeat->params;
  unsigned char *end = (unsigned char *)(uintptr_t)ready->repeat->params + block->bytes;
  unsigned char *at = end;
  for (int index = 0; index < found->value_count; index++) at -= shmi_value_bytes(found->values[index]);
  for (int index = 0; index < found->value_count; index++) {
    if (!shmi_write_value(found->values[index], &at)) return false;
  }
  return true;
}

/* Only for types whose equality means equal bytes; others are equal to themselves alone. */
static bool are_alike(PyObject *one, PyObject *other) {
  if (one == other) return true;
  bool is_plain = PyUnicode_CheckExact(one) || PyBytes_CheckExact(one) || PyLong_CheckExact(one);
  return is_plain && Py_TYPE(one) == Py_TYPE(other) && PyObject_RichCompareBool(one, other, Py_EQ) > 0;
}

static bool set_values(quick_call_t *ready, const quick_found_t *found) {
  bool are_same = true;
  if (ready->has_places && write_values(ready, found)) return true;
  for (int at = 0; are_same && !ready->has_places && at < found->value_count; at++) {
    are_same = are_alike(PyTuple_GetItem(ready->values, at), found->values[at]);
  }
  if (are_same && !ready->has_places) return true;
  PyObject *values = shmi_values_of(found), *done = NULL;
  if (values != NULL) {
    done = PyObject_CallMethodObjArgs((PyObject *)ready, shmi_quick.set_values, values, NULL);
  }
  Py_XDECREF(values);
  bool is_set = done == Py_True;
  if (done == Py_False) Py_CLEAR(ready->views);
  Py_XDECREF(done);
  return is_set;
}

bool shmi_forget_values(const quick_call_t *ready) {
  if (!ready->has_places || PyTuple_Size(ready->values) == 0) return true;
  PyObject *nothing = PyBytes_FromStringAndSize(NULL, 0);
  bool is_done = nothing != NULL && PyObject_SetAttr(ready->call, shmi_quick.value_bytes, nothing) == 0;
  Py_XDECREF(nothing);
  return is_done;
}

/* ---- arguments from elsewhere --------------------------------------------------------------- */

/* Copies an array into the arena: false where it is not to be kept there, or with an exception. */
static bool copy_in(quick_call_t *ready, int index, uint64_t *address) {
  const uint64_t bytes = ready->repeat->argument_bytes[index];
  if (ready->staged[index] == 0) {
    PyObject *number = PyLong_FromLong(index), *place = NULL;
    if (number != NULL) {
      place = PyObject_CallMethodObjArgs((PyObject *)ready, shmi_quick.stage, number, NULL);
    }
    Py_XDECREF(number);
    if (place == NULL) return false;
    ready->staged[index] = PyLong_AsUnsignedLongLong(place);
    Py_DECREF(place);
    if (ready->staged[index] == 0 || PyErr_Occurred()) return false;
  }
  memcpy((void *)(uintptr_t)ready->staged[index], (const void *)(uintptr_t)*address, (size_t)bytes);
  shmi_quick.count_bytes(SHM_BYTES_COPIED_IN, bytes);
  *address = ready->staged[index];
  return true;
}

/* A tensor may be given other memory while a helper reads what it has: so that is held, not the tensor.
 */
static bool hold_memory(PyObject **held) {
  if (Py_TYPE(*held) != shmi_quick.tensor) return true;
  PyObject *tensor = *held, *memory = PyObject_CallMethodObjArgs(tensor, shmi_quick.storage, NULL);
  if (memory == NULL) return false;
  *held = memory;
  Py_DECREF(tensor);
  return true;
}

bool shmi_fill(quick_call_t *ready, quick_found_t *found) {
  if ((uint64_t)found->array_count != ready->repeat->arguments) return false;
  if (found->value_count > 0 && !set_values(ready, found)) return false;
  for (int index = 0; index < found->array_count; index++) {
    const uint64_t at = found->addresses[index], bytes = ready->repeat->argument_bytes[index];
    bool is_here = bytes == 0 || (at >= shmi_quick.base && at <= shmi_quick.end &&
                                  bytes <= shmi_quick.end - at);
    if (is_here ? !hold_memory(&found->arrays[index])
                : !copy_in(ready, index, &found->addresses[index])) {
      return false;
    }
  }
  return true;
}

/* ---- results -------------------------------------------------------------------------------- */

static PyObject *one_of(const void *of, Py_ssize_t at) {
  const quick_call_t *ready = of;
  PyObject *view = PyObject_CallNoArgs(PyTuple_GetItem(ready->views, at));
  if (view == NULL || ready->make == Py_None) return view;
  PyObject *made = PyObject_CallFunctionObjArgs(ready->make, view, NULL);
  Py_DECREF(view);
  return made;
}

PyObject *shmi_result(const quick_call_t *ready) {
  return shmi_form_build(ready->form, one_of, ready);
}

PyObject *shmi_lone_value(const quick_call_t *ready) {
  const uint64_t bytes = ready->repeat->reply->value;
  if (bytes <= ready->repeat->room_bytes) {
    PyObject *value = shmi_read_lone((const unsigned char *)(uintptr_t)ready->room, bytes);
    if (value != NULL || PyErr_Occurred()) return value;
  }
  PyObject *size = PyLong_FromUnsignedLongLong(bytes), *found = NULL;
  if (size != NULL) {
    found = PyObject_CallMethodObjArgs((PyObject *)ready, shmi_quick.read, size, NULL);
  }
  Py_XDECREF(size);
  PyObject *value = NULL;
  if (found != NULL && PyTuple_CheckExact(found)) value = Py_NewRef(PyTuple_GetItem(found, 0));
  Py_XDECREF(found);
  return value;
}

/* ---- the type ------------------------------------------------------------------------------- */

/* describe(recipe, address, values, value_bytes): how it is made, a shm_repeat_t that lives as long
 * as the recipe; the plain values in its block, and how many bytes these take. */
static PyObject *describe(quick_call_t *self, PyObject *given) {
  PyObject *recipe, *values;
  unsigned long long address;
  Py_ssize_t bytes;
  if (!PyArg_ParseTuple(given, "OKO!n", &recipe, &address, &PyTuple_Type, &values, &bytes)) {
    return NULL;
  }
  PyObject *before[] = {self->recipe, self->values};
  self->recipe = Py_NewRef(recipe);
  self->values = Py_NewRef(values);
  self->repeat = (const shm_repeat_t *)(uintptr_t)address;
  /* Calls that may be batched together have the same values: what says so is Python's to compute. */
  self->has_places = self->repeat->config.batch_key == 0 && have_places(values, bytes);
  for (size_t at = 0; at < sizeof before / sizeof *before; at++) Py_XDECREF(before[at]);
  Py_RETURN_NONE;
}

/* hold(buffer, address, arrays, form, make): its output buffer, arrays over it that nobody else has,
 * and what is made of them. */
static PyObject *hold(quick_call_t *self, PyObject *given) {
  PyObject *buffer, *arrays, *form, *make;
  unsigned long long address;
  if (!PyArg_ParseTuple(given, "OKO!OO", &buffer, &address, &PyTuple_Type, &arrays, &form, &make)) {
    return NULL;
  }
  PyObject *views = PyTuple_New(PyTuple_Size(arrays));
  for (Py_ssize_t at = 0; views != NULL && at < PyTuple_Size(arrays); at++) {
    PyObject *view = PyObject_GetAttr(PyTuple_GetItem(arrays, at), shmi_quick.view);
    if (view == NULL || PyTuple_SetItem(views, at, view) < 0) Py_CLEAR(views);
  }
  if (views == NULL) return NULL;
  PyObject *before[] = {self->buffer, self->arrays, self->views, self->form, self->make};
  self->buffer = Py_NewRef(buffer);
  self->room = address;
  self->arrays = Py_NewRef(arrays);
  self->views = views;
  self->form = Py_NewRef(form);
  self->make = Py_NewRef(make);
  for (size_t at = 0; at < sizeof before / sizeof *before; at++) Py_XDECREF(before[at]);
  Py_RETURN_NONE;
}

static int ready_traverse(quick_call_t *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(self->call);
  Py_VISIT(self->recipe);
  Py_VISIT(self->values);
  Py_VISIT(self->buffer);
  Py_VISIT(self->arrays);
  Py_VISIT(self->views);
  Py_VISIT(self->form);
  Py_VISIT(self->make);
  return 0;
}

static int ready_clear(quick_call_t *self) {
  Py_CLEAR(self->views);
  Py_CLEAR(self->arrays);
  Py_CLEAR(self->buffer);
  Py_CLEAR(self->values);
  Py_CLEAR(self->recipe);
  Py_CLEAR(self->call);
  Py_CLEAR(self->form);
  Py_CLEAR(self->make);
  return 0;
}

static void ready_dealloc(quick_call_t *self) {
  PyObject_GC_UnTrack(self);
  ready_clear(self);
  shmi_free_object((PyObject *)self);
}

static PyMethodDef methods[] = {
    {"describe", (PyCFunction)describe, METH_VARARGS, "How it is made."},
    {"hold", (PyCFunction)hold, METH_VARARGS, "Its output buffer."},
    {0},
};

static PyMemberDef members[] = {
    {"call", T_OBJECT_EX, offsetof(quick_call_t, call), 0, NULL},
    {"buffer", T_OBJECT_EX, offsetof(quick_call_t, buffer), READONLY, NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, ready_dealloc},
    {Py_tp_traverse, ready_traverse},
    {Py_tp_clear, ready_clear},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_doc, "What a shmgpu.child.prepared.PreparedCall is made of."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "shmgpu._quick.QuickCall",
    .basicsize = sizeof(quick_call_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

int shmi_add_ready(PyObject *module) {
  PyObject *type = PyType_FromSpec(&spec);
  if (type == NULL) return -1;
  shmi_quick.call = (PyTypeObject *)type;
  Py_INCREF(type);
  return PyModule_AddObject(module, "QuickCall", type);
}
