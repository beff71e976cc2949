/* form -- a value of plain tuples, lists and dicts with a number in place of each leaf: made of leaves,
 * and held against a value, in the order of its numbers. See quick.h.
 */
#include "python/quick/quick.h"

PyObject *shmi_form_build(PyObject *form, shmi_leaf_of_t *leaf, const void *of) {
  if (PyLong_CheckExact(form)) return leaf(of, PyLong_AsSsize_t(form));
  if (PyDict_CheckExact(form)) {
    PyObject *made = PyDict_New(), *key, *item;
    Py_ssize_t place = 0;
    while (made != NULL && PyDict_Next(form, &place, &key, &item)) {
      PyObject *part = shmi_form_build(item, leaf, of);
      if (part == NULL || PyDict_SetItem(made, key, part) < 0) Py_CLEAR(made);
      Py_XDECREF(part);
    }
    return made;
  }
  bool is_tuple = PyTuple_CheckExact(form);
  const Py_ssize_t count = is_tuple ? PyTuple_Size(form) : PyList_Size(form);
  PyObject *made = is_tuple ? PyTuple_New(count) : PyList_New(count);
  for (Py_ssize_t at = 0; made != NULL && at < count; at++) {
    PyObject *item = is_tuple ? PyTuple_GetItem(form, at) : PyList_GetItem(form, at);
    PyObject *part = shmi_form_build(item, leaf, of);
    if (part == NULL) Py_CLEAR(made);
    else if (is_tuple) PyTuple_SetItem(made, at, part);
    else PyList_SetItem(made, at, part);
  }
  return made;
}

static bool take_dict(PyObject *form, PyObject *value, shmi_take_leaf_t *leaf, void *into) {
  if (!PyDict_CheckExact(value) || PyDict_Size(value) != PyDict_Size(form)) return false;
  PyObject *key, *item, *name, *one;
  Py_ssize_t place = 0, other = 0;
  while (PyDict_Next(form, &place, &key, &item)) {
    if (!PyDict_Next(value, &other, &name, &one) || !PyUnicode_CheckExact(name) ||
        PyUnicode_Compare(key, name) != 0 || !shmi_form_take(item, one, leaf, into)) {
      return false;
    }
  }
  return true;
}

bool shmi_form_take(PyObject *form, PyObject *value, shmi_take_leaf_t *leaf, void *into) {
  if (PyLong_CheckExact(form)) return leaf(into, PyLong_AsSsize_t(form), value);
  if (PyDict_CheckExact(form)) return take_dict(form, value, leaf, into);
  bool is_tuple = PyTuple_CheckExact(form);
  if (is_tuple ? !PyTuple_CheckExact(value) : !PyList_CheckExact(value)) return false;
  const Py_ssize_t count = is_tuple ? PyTuple_Size(form) : PyList_Size(form);
  if (count != (is_tuple ? PyTuple_Size(value) : PyList_Size(value))) return false;
  for (Py_ssize_t at = 0; at < count; at++) {
    PyObject *item = is_tuple ? PyTuple_GetItem(form, at) : PyList_GetItem(form, at);
    PyObject *one = is_tuple ? PyTuple_GetItem(value, at) : PyList_GetItem(value, at);
    if (!shmi_form_take(item, one, leaf, into)) return false;
  }
  return true;
}
