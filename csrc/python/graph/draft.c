/* draft -- a program's structure, and what it is given, from the nodes that are to be computed.
 *
 * Each node's place is written into the node. Steps have the places 0, 1, 2, ...; arrays that are
 * given -1, -3, -5, ...; plain numbers that are given -2, -4, -6, ... Final slots are known only
 * when all nodes have been seen, but the key does not need them. The recorder's lock is held from
 * draft() to the last use of its places. A mark tells which draft a place belongs to. See graph.h.
 */
#include "python/graph/graph.h"

typedef struct {
  PyObject *code, *arrays, *residents, *numbers, *shown, *open; /* lists */
  PyObject *resident;                                           /* a type */
  uint64_t mark;
} draft_t;

static bool add_number(PyObject *list, long number) {
  PyObject *word = PyLong_FromLong(number);
  const bool is_sound = word != NULL && PyList_Append(list, word) == 0;
  Py_XDECREF(word);
  return is_sound;
}

/* Add an array that is given to the draft: its spec and the type of its value become part of the
 * code. */
static bool take_array(draft_t *draft, node_t *node) {
  PyObject *kind = (PyObject *)Py_TYPE(node->value);
  if (PyList_Append(draft->code, node->spec) || PyList_Append(draft->code, kind) ||
      PyList_Append(draft->arrays, (PyObject *)node)) {
    return false;
  }
  node->drafted = draft->mark;
  node->place = 1 - 2 * (int)PyList_Size(draft->arrays);
  return kind != draft->resident || PyList_Append(draft->residents, (PyObject *)node) == 0;
}

static bool take_number(draft_t *draft, node_t *node) {
  PyObject *number = PyObject_GetAttr(node->value, shmi_known.number);
  if (number == NULL) return false;
  const bool is_sound = PyList_Append(draft->numbers, number) == 0 &&
                        PyList_Append(draft->code, node->spec) == 0 &&
                        PyList_Append(draft->code, shmi_known.scalar) == 0;
  Py_DECREF(number);
  node->drafted = draft->mark;
  node->place = -2 * (int)PyList_Size(draft->numbers);
  return is_sound;
}

static bool take_input(draft_t *draft, node_t *node) {
  if (node->drafted == draft->mark) {
    node->uses++;
    return add_number(draft->code, node->place);
  }
  node->uses = 1;
  return shmi_is_scalar(node) ? take_number(draft, node) : take_array(draft, node);
}

static bool take_step(draft_t *draft, node_t *node, Py_ssize_t step) {
  if (node->owners) {
    if (PyList_Append(draft->shown, (PyObject *)node)) return false;
    if (node->needs_grad && !node->is_released &&
        PyList_Append(draft->open, (PyObject *)node)) {
      return false;
    }
  }
  bool is_sound = PyList_Append(draft->code, node->op) == 0 &&
                  PyList_Append(draft->code, node->params) == 0;
  const Py_ssize_t count = shmi_count(node);
  for (Py_ssize_t at = 0; is_sound && at < count; at++) {
    is_sound = take_input(draft, shmi_input(node, at));
  }
  node->drafted = draft->mark;
  node->place = (int)step;
  node->uses = 0;
  return is_sound;
}

static bool take_all(draft_t *draft, PyObject *order, PyObject *read) {
  bool is_sound = true;
  for (Py_ssize_t at = 0; is_sound && at < PyList_Size(order); at++) {
    PyObject *one = PyList_GetItem(order, at);
    is_sound = shmi_is_node(one) && take_step(draft, (node_t *)one, at);
  }
  for (Py_ssize_t at = 0; is_sound && at < PyList_Size(read); at++) {
    node_t *one = (node_t *)PyList_GetItem(read, at);
    is_sound = shmi_is_node((PyObject *)one);
    if (is_sound && one->drafted != draft->mark) {
      one->uses = 0;
      is_sound = take_array(draft, one);
    }
  }
  return is_sound;
}

/* draft(order, read, resident): (mark, code, arrays, residents, numbers, shown, open ends); see
 * shmgpu.ops.program.Draft. `resident` is the type of values that a helper holds. */
PyObject *shmi_draft(PyObject *module, PyObject *given) {
  (void)module;
  PyObject *order, *read, *resident, *result = NULL;
  if (!PyArg_UnpackTuple(given, "draft", 3, 3, &order, &read, &resident)) return NULL;
  if (!PyList_Check(order) || !PyList_Check(read)) {
    PyErr_SetString(PyExc_TypeError, "draft: lists of nodes");
    return NULL;
  }
  PyObject *lists[6] = {0};
  bool is_sound = true;
  for (int at = 0; is_sound && at < 6; at++) is_sound = (lists[at] = PyList_New(0)) != NULL;
  if (is_sound) {
    draft_t draft = {.code = lists[0], .arrays = lists[1], .residents = lists[2],
                     .numbers = lists[3], .shown = lists[4], .open = lists[5],
                     .resident = resident, .mark = shmi_mark()};
    if (take_all(&draft, order, read)) {
      result = Py_BuildValue("KOOOOOO", (unsigned long long)draft.mark, lists[0], lists[1],
                             lists[2], lists[3], lists[4], lists[5]);
    } else if (!PyErr_Occurred()) {
      PyErr_SetString(PyExc_TypeError, "draft: lists of nodes");
    }
  }
  for (int at = 0; at < 6; at++) Py_XDECREF(lists[at]);
  return result;
}

/* places(mark, code, *lists): a tuple of the code and then, for each list, None and the places of
 * its nodes. No spec, kind or operation is equal to a number, so no two programs have the same
 * tuple. */
PyObject *shmi_places(PyObject *module, PyObject *given) {
  (void)module;
  const Py_ssize_t parts = PyTuple_Size(given);
  if (parts < 2 || !PyList_Check(PyTuple_GetItem(given, 1))) {
    PyErr_SetString(PyExc_TypeError, "places: a mark, a code, and lists of nodes");
    return NULL;
  }
  const unsigned long long mark = PyLong_AsUnsignedLongLong(PyTuple_GetItem(given, 0));
  if (PyErr_Occurred()) return NULL;
  PyObject *code = PyTuple_GetItem(given, 1);
  const Py_ssize_t length = PyList_Size(code);
  Py_ssize_t total = length;
  for (Py_ssize_t part = 2; part < parts; part++) {
    PyObject *list = PyTuple_GetItem(given, part);
    if (!PyList_Check(list)) {
      PyErr_SetString(PyExc_TypeError, "places: lists of nodes");
      return NULL;
    }
    total += 1 + PyList_Size(list);
  }
  PyObject *key = PyTuple_New(total);
  if (key == NULL) return NULL;
  for (Py_ssize_t at = 0; at < length; at++) {
    PyObject *word = PyList_GetItem(code, at);
    Py_INCREF(word);
    PyTuple_SetItem(key, at, word);
  }
  Py_ssize_t next = length;
  for (Py_ssize_t part = 2; part < parts; part++) {
    PyObject *list = PyTuple_GetItem(given, part);
    Py_INCREF(Py_None);
    PyTuple_SetItem(key, next++, Py_None);
    for (Py_ssize_t at = 0; at < PyList_Size(list); at++) {
      const node_t *node = (node_t *)PyList_GetItem(list, at);
      if (!shmi_is_node((PyObject *)node) || node->drafted != mark) {
        PyErr_SetString(PyExc_KeyError, "places: a node that the draft has not met");
        Py_DECREF(key);
        return NULL;
      }
      PyTuple_SetItem(key, next++, PyLong_FromLong(node->place));
    }
  }
  return key;
}

static bool is_step(const node_t *node, uint64_t mark) {
  return node->drafted == mark && node->place >= 0;
}

/* What an operation in place would go back to, if it failed; NULL where it is none. */
static node_t *before_of(const node_t *node) {
  if (!PyTuple_Check(node->undo)) return NULL;
  PyObject *before = PyTuple_GetItem(node->undo, 1);
  if (before == NULL) PyErr_Clear();
  return before != NULL && shmi_is_node(before) ? (node_t *)before : NULL;
}

/* A walk over what only `undo` leads to: no step, and without a value. Each node's `at` counts those
 * references to it that are not somebody's. */
typedef struct {
  nodes_t met;
  uint64_t draft, mark;
} behind_t;

static bool meet(behind_t *walk, node_t *node) {
  if (node == NULL || node->visited == walk->mark || shmi_is_computed(node)) return true;
  if (is_step(node, walk->draft)) return true;
  node->visited = walk->mark;
  node->at = 0;
  return shmi_push(&walk->met, node);
}

static void refer(const behind_t *walk, node_t *node) {
  if (node == NULL) return;
  if (is_step(node, walk->draft)) {
    node->uses++;
  } else if (node->visited == walk->mark) {
    node->at++;
  }
}

/* Count what refers to steps because an operation in place may fail: what it replaced, and what that
 * is made of, as far as nobody else knows it. All of these have their history again when it fails.
 * Makes no object. False with MemoryError. */
static bool count_behind(uint64_t mark, PyObject *order) {
  behind_t walk = {.draft = mark, .mark = shmi_mark()};
  bool is_sound = true;
  for (Py_ssize_t at = 0; is_sound && at < PyList_Size(order); at++) {
    is_sound = meet(&walk, before_of((node_t *)PyList_GetItem(order, at)));
  }
  for (size_t next = 0; is_sound && next < walk.met.count; next++) {
    const node_t *node = walk.met.items[next];
    is_sound = meet(&walk, before_of(node));
    for (Py_ssize_t at = 0; is_sound && at < shmi_count(node); at++) {
      is_sound = meet(&walk, shmi_input(node, at));
    }
  }
  if (is_sound) {
    for (Py_ssize_t at = 0; at < PyList_Size(order); at++) {
      refer(&walk, before_of((node_t *)PyList_GetItem(order, at)));
    }
    shmi_sort(&walk.met); /* what refers to a node has a higher number */
    for (size_t next = walk.met.count; next-- > 0;) {
      const node_t *node = walk.met.items[next];
      if (Py_REFCNT((PyObject *)node) > node->at + 1) continue; /* the walk has one, too */
      refer(&walk, before_of(node));
      for (Py_ssize_t at = 0; at < shmi_count(node); at++) refer(&walk, shmi_input(node, at));
    }
  }
  shmi_free(&walk.met);
  return is_sound;
}

/* Count what refers to steps from each of the tables. False with an exception. */
static bool count_tables(uint64_t mark, PyObject *tables) {
  for (Py_ssize_t table = 0; table < PyTuple_Size(tables); table++) {
    PyObject *each = PyObject_GetIter(PyTuple_GetItem(tables, table)), *one;
    while (each != NULL && (one = PyIter_Next(each)) != NULL) {
      if (shmi_is_node(one) && is_step((node_t *)one, mark)) ((node_t *)one)->uses++;
      Py_DECREF(one);
    }
    Py_XDECREF(each);
    if (PyErr_Occurred()) return false;
  }
  return true;
}

static bool are_nodes(PyObject *list) {
  for (Py_ssize_t at = 0; at < PyList_Size(list); at++) {
    if (shmi_is_node(PyList_GetItem(list, at))) continue;
    PyErr_SetString(PyExc_TypeError, "in_hand: lists of nodes");
    return false;
  }
  return true;
}

static void mark_all(PyObject *nodes, uint64_t mark) {
  for (Py_ssize_t at = 0; at < PyList_Size(nodes); at++) {
    PyObject *one = PyList_GetItem(nodes, at);
    if (shmi_is_node(one)) ((node_t *)one)->visited = mark;
  }
}

/* in_hand(mark, order, kept, read, tables, ours): those in the order whose value is neither kept nor
 * read and to which something refers besides the order's own inputs, what may be gone back to, the
 * tables and `ours` lists; and what these are made of, as far as it will have no value either. Once
 * the tables are counted, nothing is made that the garbage collector knows, so no other walk writes
 * its marks meanwhile. */
PyObject *shmi_in_hand(PyObject *module, PyObject *given) {
  (void)module;
  unsigned long long mark;
  PyObject *order, *kept, *read, *tables;
  Py_ssize_t ours;
  if (!PyArg_ParseTuple(given, "KO!O!O!O!n", &mark, &PyList_Type, &order, &PyList_Type, &kept,
                        &PyList_Type, &read, &PyTuple_Type, &tables, &ours)) {
    return NULL;
  }
  PyObject *found = are_nodes(order) ? PyList_New(0) : NULL;
  if (found == NULL || !count_tables(mark, tables) || !count_behind(mark, order)) {
    Py_XDECREF(found);
    return NULL;
  }
  const uint64_t valued = shmi_mark(), needed = shmi_mark();
  mark_all(kept, valued);
  mark_all(read, valued);
  for (Py_ssize_t at = PyList_Size(order) - 1; at >= 0; at--) {
    node_t *node = (node_t *)PyList_GetItem(order, at);
    if (node->visited == valued) continue;
    if (node->visited != needed && Py_REFCNT((PyObject *)node) <= node->uses + ours) continue;
    if (PyList_Append(found, (PyObject *)node)) {
      Py_DECREF(found);
      return NULL;
    }
    const Py_ssize_t count = shmi_count(node);
    for (Py_ssize_t input = 0; input < count; input++) {
      node_t *one = shmi_input(node, input);
      if (is_step(one, mark) && one->visited != valued) one->visited = needed;
    }
  }
  return found;
}

/* Whether only its uses and `ours` lists refer to the node, and only the node refers to its
 * value. */
static bool is_unknown(const node_t *node, Py_ssize_t ours) {
  return node->owners == 0 && Py_REFCNT((PyObject *)node) <= node->uses + ours &&
         Py_REFCNT(node->value) == 1;
}

/* How often messages refer to a node that are under way: what a dictionary says, and as its key. */
static Py_ssize_t held_by(PyObject *held, PyObject *node) {
  PyObject *count = held == Py_None ? NULL : PyDict_GetItemWithError(held, node);
  return count == NULL ? 0 : PyLong_AsSsize_t(count) + 1;
}

/* unneeded(mark, order, residents, alive, ours, held): those of the residents that nothing refers
 * to, except operations that end with this program, `ours` tables, and messages that are under way
 * (None, or a dictionary with the number of times). `alive` are nodes whose gradient may still be
 * asked for. CPython counts references exactly, and no two nodes share a tuple of
 * inputs. So if some of a node's count is left, somebody else refers to it. */
PyObject *shmi_unneeded(PyObject *module, PyObject *given) {
  (void)module;
  unsigned long long mark;
  PyObject *order, *residents, *alive, *held = Py_None;
  Py_ssize_t ours;
  if (!PyArg_ParseTuple(given, "KO!O!On|O", &mark, &PyList_Type, &order, &PyList_Type, &residents,
                        &alive, &ours, &held)) {
    return NULL;
  }
  if (held != Py_None && !PyDict_Check(held)) {
    PyErr_SetString(PyExc_TypeError, "unneeded: a dictionary of counts, or None");
    return NULL;
  }
  for (Py_ssize_t at = 0; at < PyList_Size(order); at++) {
    const node_t *node = (node_t *)PyList_GetItem(order, at);
    if (!shmi_is_node((PyObject *)node) || !PyTuple_Check(node->undo)) continue;
    node_t *before = (node_t *)PyTuple_GetItem(node->undo, 1);
    if (before != NULL && shmi_is_node((PyObject *)before) && before->drafted == mark &&
        before->place < 0) {
      before->uses++;
    }
  }
  if (PyErr_Occurred()) return NULL;
  PyObject *each = PyObject_GetIter(alive), *one;
  while (each != NULL && (one = PyIter_Next(each)) != NULL) {
    if (shmi_is_node(one)) {
      const Py_ssize_t count = shmi_count((node_t *)one);
      for (Py_ssize_t at = 0; at < count; at++) {
        node_t *input = shmi_input((node_t *)one, at);
        if (input->drafted == mark && input->place < 0) input->uses--;
      }
    }
    Py_DECREF(one);
  }
  Py_XDECREF(each);
  PyObject *found = PyErr_Occurred() ? NULL : PyList_New(0);
  for (Py_ssize_t at = 0; found != NULL && at < PyList_Size(residents); at++) {
    PyObject *node = PyList_GetItem(residents, at);
    const Py_ssize_t others = ours + held_by(held, node);
    if (PyErr_Occurred() || (shmi_is_node(node) && is_unknown((node_t *)node, others) &&
                             PyList_Append(found, node))) {
      Py_CLEAR(found);
    }
  }
  return found;
}
