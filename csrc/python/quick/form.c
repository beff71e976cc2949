/* form -- a value of plain tuples, lists and dicts with a number in place of each leaf: made of leaves,
 * and held against a value, in the order of its numbers. See quick.h.
 */
#include "python/quick/quick.h"

PyObject *shmi_item_of(PyObject *tuple_or_list, Py_ssize_t at) {
  bool is_tuple = PyTuple_CheckExact(tuple_or_list);
  const Py_ssize_t count = is_tuple ? PyTuple_Size(tuple_or_list) : PyList_Size(tuple_or_list);
  if (at >= count) return NULL;
  return Py_NewRef(is_tuple ? PyTuple_GetItem(tuple_or_list, at) : PyList_GetItem(tuple_or_list, at));
}

bool shmi_next_of(PyObject *dict, Py_ssize_t *place, PyObject **key, PyObject **item) {
  if (!PyDict_Next(dict, place, key, item)) return false;
  Py_INCREF(*key);
  Py_INCREF(*item);
  return true;
}

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
  bool is_alike = true;
  while (is_alike && PyDict_Next(form, &place, &key, &item)) {
    if (!shmi_next_of(value, &other, &name, &one)) return false;
    is_alike = PyUnicode_CheckExact(name) && PyUnicode_Compare(key, name) == 0 &&
               shmi_form_take(item, one, leaf, into);
    Py_DECREF(name);
    Py_DECREF(one);
  }
  return is_alike;
}

bool shmi_form_take(PyObject *form, PyObject *value, shmi_take_leaf_t *leaf, void *into) {
  if (PyLong_CheckExact(form)) return leaf(into, PyLong_AsSsize_t(form), value);
  if (PyDict_CheckExact(form)) return take_dict(form, value, leaf, into);
  bool is_tuple = PyTuple_CheckExact(form), is_alike = true;
  if (is_tuple ? !PyTuple_CheckExact(value) : !PyList_CheckExact(value)) return false;
  const Py_ssize_t count = is_tuple ? PyTuple_Size(form) : PyList_Size(form);
  if (count != (is_tuple ? PyTuple_Size(value) : PyList_Size(value))) return false;
  for (Py_ssize_t at = 0; is_alike && at < count; at++) {
    PyObject *item = is_tuple ? PyTuple_GetItem(form, at) : PyList_GetItem(form, at);
    PyObject *one = shmi_item_of(value, at);
    is_alike = one != NULL && shmi_form_take(item, one, leaf, into);
    Py_XDECREF(one);
  }
  return is_alike;
}
