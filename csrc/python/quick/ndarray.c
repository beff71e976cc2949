/* ndarray -- what NumPy's arrays look like in memory. See quick.h.
 *
 * NumPy gives these fields to every extension that is compiled against it, so they stand where they
 * do for all its versions. They are repeated here because nothing else of NumPy is needed to build
 * this. Python holds some arrays against what they say (shmgpu/child/quick.py) before any is read in
 * earnest: a NumPy that has them elsewhere is called through Python.
 */
#include "python/quick/quick.h"

typedef struct {
  PyObject_HEAD
  char *data;
  int axes;
  intptr_t *shape;
  intptr_t *strides;
  PyObject *base;
  PyObject *dtype;
  int flags;
} ndarray_t;

enum { C_CONTIGUOUS = 1, WRITEABLE = 0x400 }; /* of the flags */

static bool is_dtype(PyObject *dtype, PyObject *wanted) {
  if (dtype == wanted) return true;
  int same = PyObject_RichCompareBool(dtype, wanted, Py_EQ); /* few have an object for each array */
  if (same < 0) PyErr_Clear();
  return same > 0;
}

const void *shmi_array_data(PyObject *one, PyObject *dtype, int axes, const intptr_t *shape) {
  if (Py_TYPE(one) != shmi_quick.ndarray) return NULL;
  const ndarray_t *array = (const ndarray_t *)one;
  if (array->axes != axes || (array->flags & C_CONTIGUOUS) == 0) return NULL;
  for (int axis = 0; axis < axes; axis++) {
    if (array->shape[axis] != shape[axis]) return NULL;
  }
  return is_dtype(array->dtype, dtype) ? array->data : NULL;
}

const void *shmi_array_like(PyObject *one, PyObject *other) {
  const ndarray_t *wanted = (const ndarray_t *)other;
  return shmi_array_data(one, wanted->dtype, wanted->axes, wanted->shape);
}

const void *shmi_tensor_like(PyObject *one, quick_tensor_kind_t kind, PyObject *array) {
  const ndarray_t *wanted = (const ndarray_t *)array;
  return shmi_tensor_data(one, kind, wanted->axes, wanted->shape);
}

bool shmi_array_is_view(PyObject *array) {
  return ((const ndarray_t *)array)->base != NULL;
}

PyObject *shmi_array_type(PyObject *one, int *axes, const intptr_t **shape) {
  const ndarray_t *array = (const ndarray_t *)one;
  if ((array->flags & C_CONTIGUOUS) == 0) return NULL;
  *axes = array->axes;
  *shape = array->shape;
  return array->dtype;
}

bool shmi_array_is_here(PyObject *one) {
  if (Py_TYPE(one) != shmi_quick.ndarray) return false;
  const ndarray_t *array = (const ndarray_t *)one;
  uint64_t at = (uint64_t)(uintptr_t)array->data;
  for (int axis = 0; axis < array->axes; axis++) {
    if (array->shape[axis] == 0) return false;
  }
  return at >= shmi_quick.base && at < shmi_quick.end;
}

bool shmi_array_may_write(PyObject *array) {
  return (((const ndarray_t *)array)->flags & WRITEABLE) != 0;
}

void shmi_array_set_write(PyObject *array, bool may) {
  int *flags = &((ndarray_t *)array)->flags;
  *flags = may ? *flags | WRITEABLE : *flags & ~WRITEABLE;
}

/* set_writeable(array, may). */
PyObject *shmi_set_writeable(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *array;
  int may;
  if (!PyArg_ParseTuple(given, "O!p", shmi_quick.ndarray, &array, &may)) return NULL;
  shmi_array_set_write(array, may != 0);
  Py_RETURN_NONE;
}

size_t shmi_array_bytes(void) { return sizeof(ndarray_t); }

/* reads_array(array, address, shape, dtype, is_contiguous): whether those are its fields here. */
PyObject *shmi_reads_array(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *one, *shape, *dtype;
  unsigned long long address;
  int is_contiguous;
  if (!PyArg_ParseTuple(given, "OKO!Op", &one, &address, &PyTuple_Type, &shape, &dtype,
                        &is_contiguous)) {
    return NULL;
  }
  const ndarray_t *array = (const ndarray_t *)one;
  bool same = (uint64_t)(uintptr_t)array->data == address && array->axes == PyTuple_Size(shape) &&
              array->dtype == dtype && (array->flags & C_CONTIGUOUS) == is_contiguous;
  for (Py_ssize_t axis = 0; same && axis < array->axes; axis++) {
    same = array->shape[axis] == PyLong_AsSsize_t(PyTuple_GetItem(shape, axis));
  }
  return PyErr_Occurred() ? NULL : PyBool_FromLong(same);
}
