/* coming -- requests from the frames of a connection: heads, and messages as gRPC cuts them.
 *
 * A message that is wanted is received straight into the bytes that Python gets. See http2.h.
 */
#include "python/http2/http2.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SWELLING = 8 }; /* how many heads as long as allowed one may be, unpacked, to be read at all */
static const double RESETS = 500, RESETS_PER_S = 100; /* at once, and in the long run */

size_t shmi_raw_total, shmi_raw_most = (size_t)64 << 20;
size_t shmi_coming_total, shmi_coming_most = (size_t)1 << 30;

static const struct {
  const char *name;
  size_t length;
} fields[FIELDS] = {
    [METHOD] = {":method", 7},
    [PATH] = {":path", 5},
    [CONTENT_TYPE] = {"content-type", 12},
    [AUTHORIZATION] = {"authorization", 13},
    [TIMEOUT] = {"grpc-timeout", 12},
    [ENCODING] = {"grpc-encoding", 13},
    [TRACEPARENT] = {"traceparent", 11},
};

stream_t *shmi_stream(session_t *session, int32_t id) {
  return shmi_nghttp2.session_get_stream_user_data(session->library, id);
}

static bool touch(session_t *session, stream_t *stream) {
  if (stream->is_touched) return true;
  if (session->touched_count == session->touched_room) {
    const size_t room = session->touched_room ? 2 * session->touched_room : 16;
    int32_t *grown = realloc(session->touched, room * sizeof *grown);
    if (grown == NULL) return false;
    session->touched = grown;
    session->touched_room = room;
  }
  stream->is_touched = true;
  session->touched[session->touched_count++] = stream->id;
  return true;
}

bool shmi_note(session_t *session, long what) {
  if (session->progress == NULL) {
    session->progress = PyList_New(0);
    if (session->progress == NULL) return false;
  }
  PyObject *number = PyLong_FromLong(what);
  const bool is_sound = number != NULL && PyList_Append(session->progress, number) == 0;
  Py_XDECREF(number);
  return is_sound;
}

static int failed(session_t *session) {
  session->has_failed = true;
  if (!PyErr_Occurred()) PyErr_NoMemory();
  return ERROR_CALLBACK_FAILURE;
}

/* ---- streams ------------------------------------------------------------------------------ */

void shmi_drop_message(stream_t *stream) {
  shmi_coming_total -= stream->filled;
  stream->filled = 0;
  Py_CLEAR(stream->message);
}

static void fill(stream_t *stream, size_t length) {
  stream->filled += length;
  shmi_coming_total += length;
}

void shmi_free_stream(session_t *session, stream_t *stream) {
  if (stream->next != NULL) stream->next->before = stream->before;
  if (stream->before != NULL) {
    stream->before->next = stream->next;
  } else {
    session->streams = stream->next;
  }
  shmi_raw_total -= stream->raw_end - stream->raw_begin;
  free(stream->raw);
  Py_XDECREF(stream->head);
  shmi_drop_message(stream);
  Py_XDECREF(stream->going);
  Py_XDECREF(stream->trailers);
  free(stream);
}

int shmi_stream_closed(nghttp2_session *library, int32_t id, uint32_t code, void *user) {
  (void)code;
  session_t *session = user;
  if (session->in_head == id) session->in_head = 0; /* it was none: the stream was reset for that */
  stream_t *stream = shmi_nghttp2.session_get_stream_user_data(library, id);
  if (stream == NULL) return 0;
  const bool is_known = (stream->flags & OPENED) == 0; /* what was never told is not missed */
  shmi_free_stream(session, stream);
  shmi_nghttp2.session_set_stream_user_data(library, id, NULL);
  return is_known && !shmi_note(session, -(long)id) ? failed(session) : 0;
}

/* ---- heads -------------------------------------------------------------------------------- */

int shmi_begin_headers(nghttp2_session *library, const nghttp2_frame *frame, void *user) {
  session_t *session = user;
  session->in_head = frame->hd.stream_id;
  session->in_head_bytes = 0;
  session->head_length = session->head_counted = 0;
  if (frame->hd.type != FRAME_HEADERS || frame->headers.cat != CATEGORY_REQUEST) return 0;
  stream_t *stream = calloc(1, sizeof *stream);
  if (stream == NULL) return failed(session);
  stream->id = frame->hd.stream_id;
  stream->flags = OPENED;
  stream->next = session->streams;
  if (stream->next != NULL) stream->next->before = stream;
  session->streams = stream;
  shmi_nghttp2.session_set_stream_user_data(library, stream->id, stream);
  return 0;
}

static bool add_to_head(session_t *session, uint8_t field, const uint8_t *value, uint32_t length) {
  const size_t needed = session->head_length + 1 + sizeof length + length;
  if (needed > session->head_room) {
    const size_t room = needed > 512 ? 2 * needed : 1024;
    uint8_t *grown = realloc(session->head, room);
    if (grown == NULL) return false;
    session->head = grown;
    session->head_room = room;
  }
  uint8_t *at = session->head + session->head_length;
  *at = field;
  memcpy(at + 1, &length, sizeof length);
  memcpy(at + 1 + sizeof length, value, length);
  session->head_length = needed;
  return true;
}

int shmi_header(nghttp2_session *library, const nghttp2_frame *frame, const uint8_t *name,
                size_t name_length, const uint8_t *value, size_t value_length, uint8_t flags,
                void *user) {
  (void)flags;
  session_t *session = user;
  session->head_counted += name_length + value_length + 32; /* as HTTP/2 counts */
  if (session->head_counted > session->most_head) {
    if (session->head_counted > SWELLING * session->most_head) return ERROR_CALLBACK_FAILURE;
    stream_t *stream = shmi_nghttp2.session_get_stream_user_data(library, frame->hd.stream_id);
    if (stream != NULL) stream->flags |= LONG_HEAD;
    return 0;
  }
  if (frame->headers.cat != CATEGORY_REQUEST) return 0;
  for (uint8_t field = 0; field < FIELDS; field++) {
    if (fields[field].length == name_length && !memcmp(fields[field].name, name, name_length)) {
      return add_to_head(session, field, value, (uint32_t)value_length) ? 0 : failed(session);
    }
  }
  return 0;
}

/* The fields of the head that has come, as a tuple; a head like the one before has the same. */
static PyObject *head_fields(session_t *session) {
  if (session->last_head != NULL &&
      (size_t)PyBytes_Size(session->last_head) == session->head_length &&
      !memcmp(PyBytes_AsString(session->last_head), session->head, session->head_length)) {
    Py_INCREF(session->last_fields);
    return session->last_fields;
  }
  PyObject *values[FIELDS] = {0};
  bool is_sound = true;
  for (size_t at = 0; is_sound && at < session->head_length;) {
    const uint8_t field = session->head[at];
    uint32_t length;
    memcpy(&length, session->head + at + 1, sizeof length);
    at += 1 + sizeof length;
    Py_XDECREF(values[field]); /* of equal ones the last */
    values[field] = PyBytes_FromStringAndSize((char *)session->head + at, length);
    is_sound = values[field] != NULL;
    at += length;
  }
  PyObject *made = is_sound ? PyTuple_New(FIELDS) : NULL;
  for (size_t field = 0; field < FIELDS; field++) {
    if (made == NULL) {
      Py_XDECREF(values[field]);
      continue;
    }
    if (values[field] == NULL) {
      Py_INCREF(Py_None);
      values[field] = Py_None;
    }
    PyTuple_SetItem(made, (Py_ssize_t)field, values[field]);
  }
  PyObject *bytes = made == NULL ? NULL
                                 : PyBytes_FromStringAndSize((char *)session->head,
                                                             (Py_ssize_t)session->head_length);
  if (bytes == NULL) {
    Py_XDECREF(made);
    return NULL;
  }
  Py_XDECREF(session->last_head);
  Py_XDECREF(session->last_fields);
  session->last_head = bytes;
  session->last_fields = made;
  Py_INCREF(made);
  return made;
}

/* ---- messages ----------------------------------------------------------------------------- */

static void consumed(session_t *session, stream_t *stream, size_t length) {
  if (!stream->has_ended) {
    shmi_nghttp2.session_consume_stream(session->library, stream->id, length);
  }
}

static void take_raw(session_t *session, stream_t *stream, void *to, size_t length) {
  memcpy(to, stream->raw + stream->raw_begin, length);
  stream->raw_begin += length;
  shmi_raw_total -= length;
  if (stream->raw_begin == stream->raw_end) stream->raw_begin = stream->raw_end = 0;
  consumed(session, stream, length);
}

/* Begin the message whose prefix has come; false with an exception. */
static bool begin_message(session_t *session, stream_t *stream) {
  const uint8_t *prefix = stream->raw + stream->raw_begin;
  const size_t size = (size_t)prefix[1] << 24 | (size_t)prefix[2] << 16 | (size_t)prefix[3] << 8 |
                      (size_t)prefix[4];
  if (prefix[0] > 1 || size > session->most_message) {
    stream->flags |= prefix[0] > 1 ? BROKEN : TOO_LARGE;
    stream->is_wanted = false;
    return true;
  }
  stream->is_compressed = prefix[0] == 1;
  stream->message = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
  if (stream->message == NULL) return false;
  stream->size = size;
  uint8_t dropped[PREFIX_BYTES];
  take_raw(session, stream, dropped, PREFIX_BYTES);
  if (size > WINDOW && !stream->has_ended) {
    shmi_nghttp2.session_set_local_window_size(session->library, 0, stream->id, WIDE_WINDOW);
  }
  return true;
}

/* Have the stream's message come as far as its bytes are there; whether it is whole, or will not
 * be, is then among what is to be told. */
bool shmi_advance(session_t *session, stream_t *stream) {
  if (!stream->is_wanted) return true;
  if (stream->message == NULL && stream->raw_end - stream->raw_begin >= PREFIX_BYTES) {
    if (!begin_message(session, stream)) return false;
  }
  if (stream->message != NULL) {
    size_t length = stream->raw_end - stream->raw_begin;
    if (length > stream->size - stream->filled) length = stream->size - stream->filled;
    if (length) {
      take_raw(session, stream, PyBytes_AsString(stream->message) + stream->filled, length);
    }
    fill(stream, length);
    if (stream->filled == stream->size) {
      stream->flags |= MESSAGE | (stream->is_compressed ? COMPRESSED : 0);
      stream->is_wanted = false;
    } else if (stream->size > WINDOW && shmi_coming_total > shmi_coming_most) {
      stream->flags |= NO_ROOM;
      stream->is_wanted = false;
      shmi_drop_message(stream);
    }
  }
  if (stream->is_wanted && stream->has_ended) { /* no more will come */
    if (stream->message != NULL || stream->raw_end > stream->raw_begin) stream->flags |= BROKEN;
    stream->is_wanted = false;
    shmi_drop_message(stream);
  }
  return true;
}

static bool keep_raw(stream_t *stream, const uint8_t *data, size_t length) {
  if (stream->raw_end + length > stream->raw_room) {
    const size_t held = stream->raw_end - stream->raw_begin;
    if (held + length > stream->raw_room) {
      size_t room = stream->raw_room ? 2 * stream->raw_room : 2048;
      while (room < held + length) room *= 2;
      uint8_t *grown = malloc(room);
      if (grown == NULL) return false;
      if (held) memcpy(grown, stream->raw + stream->raw_begin, held);
      free(stream->raw);
      stream->raw = grown;
      stream->raw_room = room;
    } else {
      memmove(stream->raw, stream->raw + stream->raw_begin, held);
    }
    stream->raw_begin = 0;
    stream->raw_end = held;
  }
  memcpy(stream->raw + stream->raw_end, data, length);
  stream->raw_end += length;
  shmi_raw_total += length;
  return true;
}

int shmi_data(nghttp2_session *library, uint8_t flags, int32_t id, const uint8_t *data,
              size_t length, void *user) {
  (void)flags;
  session_t *session = user;
  shmi_nghttp2.session_consume_connection(library, length);
  stream_t *stream = shmi_nghttp2.session_get_stream_user_data(library, id);
  if (stream == NULL) return 0;
  if (stream->is_answered) { /* nobody wants the rest */
    consumed(session, stream, length);
    return 0;
  }
  if (stream->is_wanted && stream->message != NULL) {
    size_t part = stream->size - stream->filled;
    if (part > length) part = length;
    memcpy(PyBytes_AsString(stream->message) + stream->filled, data, part);
    fill(stream, part);
    consumed(session, stream, part);
    data += part;
    length -= part;
  }
  if (length && !keep_raw(stream, data, length)) return failed(session);
  const bool was_wanted = stream->is_wanted;
  if (!shmi_advance(session, stream)) return failed(session);
  if (was_wanted && !stream->is_wanted && !touch(session, stream)) return failed(session);
  if (shmi_raw_total > shmi_raw_most && stream->raw_end - stream->raw_begin) {
    shmi_nghttp2.submit_rst_stream(library, 0, id, H2_REFUSED_STREAM);
  }
  return 0;
}

/* ---- frames ------------------------------------------------------------------------------- */

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A client that resets more streams than anybody who means well, or has them reset by what it
 * sends, is sent away: each costs more here than there. */
void shmi_count_reset(session_t *session) {
  const double now = now_s();
  if (session->reset_at == 0) session->resets = RESETS;
  session->resets += (now - session->reset_at) * RESETS_PER_S;
  if (session->resets > RESETS) session->resets = RESETS;
  session->reset_at = now;
  session->resets -= 1;
  if (session->resets < 0) {
    shmi_nghttp2.session_terminate_session(session->library, H2_ENHANCE_YOUR_CALM);
  }
}

int shmi_frame_came(nghttp2_session *library, const nghttp2_frame *frame, void *user) {
  session_t *session = user;
  if (frame->hd.type == FRAME_RST_STREAM) shmi_count_reset(session);
  if (frame->hd.type != FRAME_DATA && frame->hd.type != FRAME_HEADERS) return 0;
  if (frame->hd.type == FRAME_HEADERS) session->in_head = 0;
  stream_t *stream = shmi_nghttp2.session_get_stream_user_data(library, frame->hd.stream_id);
  if (stream == NULL) return 0;
  if (frame->hd.type == FRAME_HEADERS && frame->headers.cat == CATEGORY_REQUEST) {
    stream->head = head_fields(session);
    if (stream->head == NULL || !touch(session, stream)) return failed(session);
  }
  if (frame->hd.flags & FLAG_END_STREAM) {
    stream->has_ended = true;
    const bool was_wanted = stream->is_wanted;
    stream->flags |= ENDED;
    if (!shmi_advance(session, stream)) return failed(session);
    if (was_wanted && !touch(session, stream)) return failed(session);
  }
  return 0;
}

/* ---- what is told ------------------------------------------------------------------------- */

/* (id, flags, head or None, message or None); NULL with an exception. */
PyObject *shmi_event(stream_t *stream) {
  PyObject *head = Py_None, *message = Py_None;
  if (stream->flags & OPENED) head = stream->head;
  if (stream->flags & MESSAGE) message = stream->message;
  PyObject *made = Py_BuildValue("iiOO", (int)stream->id, stream->flags, head, message);
  if (stream->flags & OPENED) Py_CLEAR(stream->head);
  if (stream->flags & MESSAGE) shmi_drop_message(stream);
  stream->flags &= ENDED; /* which stays so */
  return made;
}

PyObject *shmi_told(session_t *session) {
  PyObject *told = PyList_New(0);
  bool is_sound = told != NULL;
  for (size_t at = 0; is_sound && at < session->touched_count; at++) {
    stream_t *stream = shmi_stream(session, session->touched[at]);
    if (stream == NULL) continue; /* it has ended meanwhile */
    stream->is_touched = false;
    if (stream->flags & OPENED && stream->flags & ENDED && !(stream->flags & LONG_HEAD)) {
      stream->is_wanted = true; /* it has come already */
      is_sound = shmi_advance(session, stream);
      stream->is_wanted = false;
    }
    PyObject *one = is_sound ? shmi_event(stream) : NULL;
    is_sound = one != NULL && PyList_Append(told, one) == 0;
    Py_XDECREF(one);
  }
  session->touched_count = 0;
  if (!is_sound) Py_CLEAR(told);
  return told;
}
