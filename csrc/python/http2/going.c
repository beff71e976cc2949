/* going -- answers as frames: a head, messages, and trailers that say how a call ended.
 *
 * A stream has one message on its way at a time; Python is told when it was taken. See http2.h.
 */
#include "python/http2/http2.h"

#include <stdlib.h>
#include <string.h>

#define CONSTANT(name, value)                                                              \
  {(uint8_t *)(name), (uint8_t *)(value), sizeof(name) - 1, sizeof(value) - 1, NV_NO_COPY}

static const nghttp2_nv head[] = {
    CONSTANT(":status", "200"),
    CONSTANT("content-type", "application/grpc"),
};
static const nghttp2_nv well[] = {CONSTANT("grpc-status", "0")};

static uint8_t *outbox; /* of all sessions: emptied by the call that fills it */
static size_t outbox_room;

/* The trailers of a call that failed: "STATUS SENTENCE" cut into two fields; their number. */
static size_t failed_trailers(PyObject *trailers, nghttp2_nv made[2]) {
  char *text = PyBytes_AsString(trailers);
  const size_t length = (size_t)PyBytes_Size(trailers);
  const char *space = memchr(text, ' ', length);
  const size_t status = space == NULL ? length : (size_t)(space - text);
  made[0] = (nghttp2_nv){(uint8_t *)"grpc-status", (uint8_t *)text, 11, status, 0};
  if (status >= length) return 1;
  made[1] = (nghttp2_nv){(uint8_t *)"grpc-message", (uint8_t *)text + status + 1, 12,
                         length - status - 1, 0};
  return 2;
}

static int submit_trailers(nghttp2_session *library, stream_t *stream) {
  if (stream->trailers == NULL) return shmi_nghttp2.submit_trailer(library, stream->id, well, 1);
  nghttp2_nv made[2];
  const size_t count = failed_trailers(stream->trailers, made);
  return shmi_nghttp2.submit_trailer(library, stream->id, made, count);
}

/* As much of the message as there is room for; see nghttp2_data_source_read_callback. */
static ssize_t read_message(nghttp2_session *library, int32_t id, uint8_t *to, size_t room,
                            uint32_t *flags, nghttp2_data_source *source, void *user) {
  (void)source;
  session_t *session = user;
  stream_t *stream = shmi_nghttp2.session_get_stream_user_data(library, id);
  if (stream == NULL) return ERROR_CALLBACK_FAILURE;
  size_t count = 0;
  if (stream->going != NULL) {
    const size_t size = (size_t)PyBytes_Size(stream->going);
    if (stream->sent < PREFIX_BYTES) {
      count = PREFIX_BYTES - stream->sent;
      if (count > room) count = room;
      memcpy(to, stream->prefix + stream->sent, count);
      stream->sent += count;
    }
    if (stream->sent >= PREFIX_BYTES) {
      size_t part = size + PREFIX_BYTES - stream->sent;
      if (part > room - count) part = room - count;
      memcpy(to + count, PyBytes_AsString(stream->going) + stream->sent - PREFIX_BYTES, part);
      stream->sent += part;
      count += part;
    }
    if (stream->sent < size + PREFIX_BYTES) return (ssize_t)count;
    Py_CLEAR(stream->going);
    if (!stream->is_finished && !shmi_note(session, id)) {
      session->has_failed = true;
      return ERROR_CALLBACK_FAILURE;
    }
  }
  if (stream->is_finished) {
    *flags |= DATA_EOF | DATA_NO_END_STREAM;
    if (submit_trailers(library, stream)) return ERROR_CALLBACK_FAILURE;
    return (ssize_t)count;
  }
  return count ? (ssize_t)count : ERROR_DEFERRED;
}

/* A client that still sends is told that nobody wants the rest. */
int shmi_frame_went(nghttp2_session *library, const nghttp2_frame *frame, void *user) {
  if (frame->hd.type == FRAME_RST_STREAM) {
    const uint32_t code = frame->rst_stream.error_code; /* these are ours: see below, and coming.c */
    if (code != H2_NO_ERROR && code != H2_CANCEL && code != H2_REFUSED_STREAM) {
      shmi_count_reset(user);
    }
  }
  if (frame->hd.type != FRAME_HEADERS || !(frame->hd.flags & FLAG_END_STREAM)) return 0;
  const stream_t *stream =
      shmi_nghttp2.session_get_stream_user_data(library, frame->hd.stream_id);
  if (stream != NULL && !stream->has_ended) {
    shmi_nghttp2.submit_rst_stream(library, 0, frame->hd.stream_id, H2_NO_ERROR);
  }
  return 0;
}

static void put(stream_t *stream, PyObject *message) {
  const size_t size = (size_t)PyBytes_Size(message);
  stream->prefix[0] = 0;
  for (int at = 0; at < 4; at++) stream->prefix[1 + at] = (uint8_t)(size >> (24 - 8 * at));
  stream->sent = 0;
  Py_INCREF(message);
  stream->going = message;
}

/* Have what the stream has go out: the first time with its head. */
static int begin_or_go_on(session_t *session, stream_t *stream) {
  if (stream->has_head_sent) {
    shmi_nghttp2.session_resume_data(session->library, stream->id);
    return 0;
  }
  stream->has_head_sent = true;
  const nghttp2_data_provider provider = {.read_callback = read_message};
  return shmi_nghttp2.submit_response(session->library, stream->id, head, 2, &provider);
}

static PyObject *sent(session_t *session, PyObject *given, bool is_last) {
  int id;
  PyObject *message;
  if (!PyArg_ParseTuple(given, "iO!", &id, &PyBytes_Type, &message)) return NULL;
  stream_t *stream = shmi_stream(session, id);
  if (stream == NULL || stream->is_answered || stream->going != NULL) Py_RETURN_FALSE;
  put(stream, message);
  if (is_last) stream->is_answered = stream->is_finished = true;
  return PyBool_FromLong(begin_or_go_on(session, stream) == 0);
}

/* answer(id, message): the only one, and all went well; False: there is no such stream. */
PyObject *shmi_answer(PyObject *session, PyObject *given) {
  return sent((session_t *)session, given, true);
}

/* send(id, message): one of many, or the first; False: there is no such stream. */
PyObject *shmi_send(PyObject *session, PyObject *given) {
  return sent((session_t *)session, given, false);
}

/* end(id, trailers): no more messages. `trailers` are b"STATUS SENTENCE"; None: all went well. */
PyObject *shmi_end(PyObject *self, PyObject *given) {
  session_t *session = (session_t *)self;
  int id;
  PyObject *trailers;
  if (!PyArg_ParseTuple(given, "iO", &id, &trailers)) return NULL;
  stream_t *stream = shmi_stream(session, id);
  if (stream == NULL || stream->is_answered) Py_RETURN_FALSE;
  stream->is_answered = stream->is_finished = true;
  stream->is_wanted = false;
  shmi_drop_message(stream); /* the rest of it is not wanted any more */
  if (trailers != Py_None) {
    if (!PyBytes_Check(trailers)) {
      PyErr_SetString(PyExc_TypeError, "end: trailers are bytes or None");
      return NULL;
    }
    Py_INCREF(trailers);
    stream->trailers = trailers;
  }
  if (stream->has_head_sent || stream->trailers == NULL) {
    return PyBool_FromLong(begin_or_go_on(session, stream) == 0);
  }
  nghttp2_nv all[4] = {head[0], head[1]};
  const size_t count = 2 + failed_trailers(stream->trailers, all + 2);
  stream->has_head_sent = true;
  return PyBool_FromLong(
      shmi_nghttp2.submit_response(session->library, id, all, count, NULL) == 0);
}

/* refuse(id, status): what is no request of gRPC's is answered as HTTP has it. */
PyObject *shmi_refuse(PyObject *self, PyObject *given) {
  session_t *session = (session_t *)self;
  int id;
  Py_ssize_t length;
  char *status;
  if (!PyArg_ParseTuple(given, "iy#", &id, &status, &length)) return NULL;
  stream_t *stream = shmi_stream(session, id);
  if (stream == NULL || stream->is_answered) Py_RETURN_FALSE;
  stream->is_answered = stream->is_finished = stream->has_head_sent = true;
  const nghttp2_nv only = {(uint8_t *)":status", (uint8_t *)status, 7, (size_t)length, 0};
  return PyBool_FromLong(
      shmi_nghttp2.submit_response(session->library, id, &only, 1, NULL) == 0);
}

/* reset(id): the stream ends at once, whatever was sent of it. */
PyObject *shmi_reset(PyObject *self, PyObject *given) {
  session_t *session = (session_t *)self;
  const long id = PyLong_AsLong(given);
  if (id == -1 && PyErr_Occurred()) return NULL;
  stream_t *stream = shmi_stream(session, (int32_t)id);
  if (stream == NULL) Py_RETURN_FALSE;
  stream->is_answered = true;
  return PyBool_FromLong(
      shmi_nghttp2.submit_rst_stream(session->library, 0, stream->id, H2_CANCEL) == 0);
}

/* pull(most): bytes to be sent now, about so many at most; None: there are none. */
PyObject *shmi_pull(PyObject *self, PyObject *given) {
  session_t *session = (session_t *)self;
  const Py_ssize_t most = PyLong_AsSsize_t(given);
  if (most < 0 && PyErr_Occurred()) return NULL;
  size_t count = 0;
  while ((Py_ssize_t)count < most) {
    const uint8_t *piece;
    const ssize_t length = shmi_nghttp2.session_mem_send(session->library, &piece);
    if (session->has_failed) {
      session->has_failed = false;
      return NULL;
    }
    if (length < 0) return PyErr_NoMemory();
    if (length == 0) break;
    if (count + (size_t)length > outbox_room) {
      const size_t room = 2 * (count + (size_t)length) + 16384;
      uint8_t *grown = realloc(outbox, room);
      if (grown == NULL) return PyErr_NoMemory();
      outbox = grown;
      outbox_room = room;
    }
    memcpy(outbox + count, piece, (size_t)length);
    count += (size_t)length;
  }
  if (count == 0) Py_RETURN_NONE;
  return PyBytes_FromStringAndSize((char *)outbox, (Py_ssize_t)count);
}
