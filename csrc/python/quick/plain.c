/* plain -- plain values in blocks and results, as shmgpu/codec/pytree.py has them in bytes. See quick.h.
 */
#include "python/quick/quick.h"

/* Their kinds, and what stands in a structure for one. */
enum { NONE = 'N', TRUE = 'T', FALSE = 'F', INT = 'i', FLOAT = 'f', VALUE = 'V' };

bool shmi_write_value(PyObject *value, unsigned char **at) {
  long long whole;
  double number;
  const void *from = &whole;
  int overflow = 0;
  if (value == Py_None || PyBool_Check(value)) {
    *(*at)++ = value == Py_None ? NONE : value == Py_True ? TRUE : FALSE;
    return true;
  }
  if (PyFloat_CheckExact(value)) {
    number = PyFloat_AsDouble(value);
    from = &number;
  } else {
    whole = PyLong_AsLongLongAndOverflow(value, &overflow);
  }
  if (overflow != 0) return false;
  *(*at)++ = from == &number ? FLOAT : INT;
  memcpy(*at, from, 8);
  *at += 8;
  return true;
}

Py_ssize_t shmi_value_bytes(PyObject *value) {
  if (value == Py_None || PyBool_Check(value)) return 1;
  return PyFloat_CheckExact(value) || PyLong_CheckExact(value) ? 9 : -1;
}

/* What precedes a result that is one plain value, as shmgpu/codec/layout.py describes it: four
 * lengths, the structure. */
typedef struct {
  uint32_t total, structure, values, arrays;
  unsigned char place, kind;
} lone_t;

enum { LONE_BYTES = 17, LONE_KIND_BYTES }; /* of it, without and with the value's kind */

PyObject *shmi_read_lone(const unsigned char *from, uint64_t bytes) {
  lone_t head;
  if (bytes < LONE_KIND_BYTES) return NULL;
  memcpy(&head, from, LONE_KIND_BYTES);
  if (head.structure != 1 || head.arrays != 0 || head.place != VALUE || head.total != bytes ||
      head.values != bytes - LONE_BYTES) {
    return NULL;
  }
  if (head.values == 9 && head.kind == FLOAT) {
    double number;
    memcpy(&number, from + LONE_KIND_BYTES, sizeof number);
    return PyFloat_FromDouble(number);
  }
  if (head.values == 9 && head.kind == INT) {
    long long whole;
    memcpy(&whole, from + LONE_KIND_BYTES, sizeof whole);
    return PyLong_FromLongLong(whole);
  }
  if (head.values == 1 && head.kind == NONE) return Py_NewRef(Py_None);
  if (head.values == 1 && (head.kind == TRUE || head.kind == FALSE)) {
    return PyBool_FromLong(head.kind == TRUE);
  }
  return NULL;
}

uint64_t shmi_write_lone(PyObject *value, unsigned char *to, uint64_t room) {
  const Py_ssize_t bytes = shmi_value_bytes(value);
  if (bytes < 0 || room < LONE_BYTES + (uint64_t)bytes) return 0;
  const lone_t head = {.total = (uint32_t)(LONE_BYTES + bytes),
                       .structure = 1,
                       .values = (uint32_t)bytes,
                       .place = VALUE};
  unsigned char *at = to + LONE_BYTES;
  if (!shmi_write_value(value, &at)) return 0;
  memcpy(to, &head, LONE_BYTES);
  return head.total;
}
