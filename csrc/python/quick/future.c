/* future -- what callers hold while a call is in flight: the fields of a CallFuture and of a Started,
 * so that C tells them of the end in one step. See quick.h, and shmgpu/child/futures.py for the rest.
 */
#include <stddef.h>

#include "python/quick/quick.h"

#include <structmember.h>

static PyObject **fields_of(quick_future_t *self, size_t at) {
  PyObject **all[] = {&self->port,  &self->ticket, &self->made,   &self->state, &self->result,
                      &self->error, &self->loop,   &self->reader, &self->woken};
  return at < sizeof all / sizeof *all ? all[at] : NULL;
}

quick_future_t *shmi_new_future(PyTypeObject *type) {
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  quick_future_t *made = (quick_future_t *)allocate(type, 0);
  if (made == NULL) return NULL;
  for (size_t at = 0; fields_of(made, at) != NULL; at++) *fields_of(made, at) = Py_NewRef(Py_None);
  if (shmi_quick.pending != NULL) shmi_set(&made->state, shmi_quick.pending);
  return made;
}

bool shmi_is_unmade(PyObject *handler) {
  return PyObject_TypeCheck(handler, shmi_quick.future) &&
         ((quick_future_t *)handler)->made == Py_None;
}

void shmi_set(PyObject **field, PyObject *value) {
  PyObject *before = *field;
  *field = Py_XNewRef(value);
  Py_XDECREF(before);
}

/* become(made): what it is made as from now on: that, unless it is something already. */
static PyObject *become(quick_future_t *self, PyObject *made) {
  if (self->made == Py_None) shmi_set(&self->made, made);
  return Py_NewRef(self->made);
}

static PyObject *future_new(PyTypeObject *type, PyObject *given, PyObject *named) {
  (void)given;
  (void)named;
  return (PyObject *)shmi_new_future(type);
}

/* ---- the type --------------------------------------------------------------------------------- */

static int future_traverse(quick_future_t *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  for (size_t at = 0; fields_of(self, at) != NULL; at++) Py_VISIT(*fields_of(self, at));
  return 0;
}

static int future_clear(quick_future_t *self) {
  for (size_t at = 0; fields_of(self, at) != NULL; at++) Py_CLEAR(*fields_of(self, at));
  return 0;
}

static void future_dealloc(quick_future_t *self) {
  PyObject_GC_UnTrack(self);
  future_clear(self);
  shmi_free_object((PyObject *)self);
}

static PyMethodDef methods[] = {
    {"become", (PyCFunction)become, METH_O, "What it is made as, unless it is something already."},
    {0},
};

static PyMemberDef members[] = {
    {"_port", T_OBJECT_EX, offsetof(quick_future_t, port), 0, NULL},
    {"_ticket", T_OBJECT_EX, offsetof(quick_future_t, ticket), 0, NULL},
    {"_made", T_OBJECT_EX, offsetof(quick_future_t, made), 0, NULL},
    {"_state", T_OBJECT_EX, offsetof(quick_future_t, state), 0, NULL},
    {"_result", T_OBJECT_EX, offsetof(quick_future_t, result), 0, NULL},
    {"_exception", T_OBJECT_EX, offsetof(quick_future_t, error), 0, NULL},
    {"_loop", T_OBJECT_EX, offsetof(quick_future_t, loop), 0, NULL},
    {"reader", T_OBJECT_EX, offsetof(quick_future_t, reader), 0, NULL},
    {"_woken", T_OBJECT_EX, offsetof(quick_future_t, woken), 0, NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_new, future_new},
    {Py_tp_dealloc, future_dealloc},
    {Py_tp_traverse, future_traverse},
    {Py_tp_clear, future_clear},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_doc, "What the futures of shmgpu.child.futures are made of."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "shmgpu._quick.QuickFuture",
    .basicsize = sizeof(quick_future_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

int shmi_add_future(PyObject *module) {
  PyObject *type = PyType_FromSpec(&spec);
  if (type == NULL) return -1;
  shmi_quick.future = (PyTypeObject *)type;
  return PyModule_AddType(module, (PyTypeObject *)type);
}
