/* session -- the type Session: one connection's side of the protocol. See http2.h. */
#include "python/http2/http2.h"

#include <stdlib.h>

/* Frames that may wait for a client that takes nothing: a read may cause several thousand. */
enum { UNSENT = 10000, UNSENT_OF_ONE = 4 };

uint8_t shmi_scratch[SCRATCH_BYTES];

static nghttp2_session_callbacks *callbacks;
static nghttp2_option *option;

static bool make_callbacks(void) {
  if (callbacks != NULL) return true;
  if (shmi_nghttp2.session_callbacks_new(&callbacks) || shmi_nghttp2.option_new(&option)) {
    return false;
  }
  shmi_nghttp2.session_callbacks_set_on_begin_headers_callback(callbacks, shmi_begin_headers);
  shmi_nghttp2.session_callbacks_set_on_header_callback(callbacks, shmi_header);
  shmi_nghttp2.session_callbacks_set_on_data_chunk_recv_callback(callbacks, shmi_data);
  shmi_nghttp2.session_callbacks_set_on_frame_recv_callback(callbacks, shmi_frame_came);
  shmi_nghttp2.session_callbacks_set_on_frame_send_callback(callbacks, shmi_frame_went);
  shmi_nghttp2.session_callbacks_set_on_stream_close_callback(callbacks, shmi_stream_closed);
  shmi_nghttp2.option_set_no_auto_window_update(option, 1);
  shmi_nghttp2.option_set_no_closed_streams(option, 1);
  return true;
}

/* Session(streams, head, message): how many may be open at once, bytes of one head and message. */
static PyObject *session_new(PyTypeObject *type, PyObject *given, PyObject *named) {
  (void)named;
  unsigned int streams;
  Py_ssize_t head, message;
  if (!PyArg_ParseTuple(given, "Inn", &streams, &head, &message)) return NULL;
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  session_t *self = (session_t *)allocate(type, 0);
  if (self == NULL) return NULL;
  self->most_head = (size_t)head;
  self->most_message = (size_t)message;
  self->most_unsent = UNSENT + UNSENT_OF_ONE * (size_t)streams;
  const nghttp2_settings_entry settings[] = {
      {SETTINGS_MAX_CONCURRENT_STREAMS, streams},
      {SETTINGS_INITIAL_WINDOW_SIZE, WINDOW},
      {SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)head},
  };
  nghttp2_session **made = &self->library;
  if (!make_callbacks() || shmi_nghttp2.session_server_new2(made, callbacks, self, option) ||
      shmi_nghttp2.submit_settings(*made, 0, settings, 3) ||
      shmi_nghttp2.session_set_local_window_size(*made, 0, 0, CONNECTION_WINDOW)) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  return (PyObject *)self;
}

static void session_dealloc(PyObject *one) {
  session_t *self = (session_t *)one;
  if (self->library != NULL) shmi_nghttp2.session_del(self->library);
  while (self->streams != NULL) shmi_free_stream(self, self->streams);
  free(self->head);
  free(self->touched);
  Py_XDECREF(self->last_head);
  Py_XDECREF(self->last_fields);
  Py_XDECREF(self->progress);
  PyTypeObject *type = Py_TYPE(one);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(one);
  Py_DECREF(type);
}

/* feed(count): so many bytes lie in the scratch buffer. A list of what is to be told of streams:
 * (id, flags, head or None, message or None). None: this is no HTTP/2, or of a client
 * that takes nothing of what it causes, and the end. */
static PyObject *session_feed(PyObject *one, PyObject *given) {
  session_t *self = (session_t *)one;
  const Py_ssize_t count = PyLong_AsSsize_t(given);
  if (count < 0 || count > SCRATCH_BYTES) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "feed: more than there may be");
    return NULL;
  }
  const ssize_t used =
      shmi_nghttp2.session_mem_recv(self->library, shmi_scratch, (size_t)count);
  if (self->has_failed) {
    self->has_failed = false;
    return NULL;
  }
  if (used < 0) Py_RETURN_NONE;
  if (shmi_nghttp2.session_get_outbound_queue_size(self->library) > self->most_unsent) {
    Py_RETURN_NONE; /* it has us say ever more, and takes nothing */
  }
  if (self->in_head) {
    self->in_head_bytes += (size_t)count;
    if (self->in_head_bytes > 2 * self->most_head + SCRATCH_BYTES) { /* it will never end */
      shmi_nghttp2.session_terminate_session(self->library, H2_ENHANCE_YOUR_CALM);
    }
  }
  return shmi_told(self);
}

/* want(id): the stream's next message, or its end, is wanted: what feed() tells if it is there
 * already, None if feed() will tell it. False: there is no such stream any more. */
static PyObject *session_want(PyObject *one, PyObject *given) {
  session_t *self = (session_t *)one;
  const long id = PyLong_AsLong(given);
  if (id == -1 && PyErr_Occurred()) return NULL;
  stream_t *stream = shmi_stream(self, (int32_t)id);
  if (stream == NULL) Py_RETURN_FALSE;
  stream->is_wanted = true;
  if (!shmi_advance(self, stream)) return NULL;
  if (stream->is_wanted) Py_RETURN_NONE;
  return shmi_event(stream);
}

/* progress(): ids of streams whose message was taken, and, negative, of those that have ended;
 * None: there are none since it was last asked. */
static PyObject *session_progress(PyObject *one, PyObject *unused) {
  (void)unused;
  session_t *self = (session_t *)one;
  if (self->progress == NULL) Py_RETURN_NONE;
  PyObject *told = self->progress;
  self->progress = NULL;
  return told;
}

/* leave(is_final): first the client is told to begin no more streams; then those that it began
 * later are ignored. */
static PyObject *session_leave(PyObject *one, PyObject *is_final) {
  session_t *self = (session_t *)one;
  if (is_final == Py_True) {
    const int32_t last = shmi_nghttp2.session_get_last_proc_stream_id(self->library);
    shmi_nghttp2.submit_goaway(self->library, 0, last, H2_NO_ERROR, NULL, 0);
  } else {
    shmi_nghttp2.submit_shutdown_notice(self->library);
  }
  Py_RETURN_NONE;
}

/* is_over(): whether neither side has anything to say any more. */
static PyObject *session_is_over(PyObject *one, PyObject *unused) {
  (void)unused;
  nghttp2_session *library = ((session_t *)one)->library;
  return PyBool_FromLong(!shmi_nghttp2.session_want_read(library) &&
                         !shmi_nghttp2.session_want_write(library));
}

static PyMethodDef methods[] = {
    {"feed", session_feed, METH_O, "So many bytes have come."},
    {"want", session_want, METH_O, "A stream's next message is wanted."},
    {"answer", shmi_answer, METH_VARARGS, "The only message of an answer."},
    {"send", shmi_send, METH_VARARGS, "One message of an answer."},
    {"end", shmi_end, METH_VARARGS, "No more messages."},
    {"refuse", shmi_refuse, METH_VARARGS, "Answer what is no request of gRPC's."},
    {"reset", shmi_reset, METH_O, "End a stream at once."},
    {"pull", shmi_pull, METH_O, "Bytes to be sent."},
    {"progress", session_progress, METH_NOARGS, "Streams that have ended, and others."},
    {"leave", session_leave, METH_O, "Tell the client that the connection will end."},
    {"is_over", session_is_over, METH_NOARGS, "Whether all was said."},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_new, session_new},
    {Py_tp_dealloc, session_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, "One connection's side of HTTP/2."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "shmgpu._http2.Session",
    .basicsize = sizeof(session_t),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

int shmi_add_session(PyObject *module) {
  PyObject *type = PyType_FromSpec(&spec);
  return type == NULL ? -1 : PyModule_AddObject(module, "Session", type);
}
