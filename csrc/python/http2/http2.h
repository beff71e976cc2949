/* http2 -- HTTP/2 connections of a gRPC server, in C: the module shmgpu._http2.
 *
 * A connection's bytes go in, and whole requests come out: their heads, and their messages as gRPC
 * cuts them. Answers' messages go in, and bytes come out. One call of Python's for what one read
 * brought, instead of one for each frame, is what makes it quick; libnghttp2 does the protocol.
 * shmgpu/serve/frontend has the sockets, and decides what is done with a request.
 *
 * A message is received only where it is wanted: until then the client may send WINDOW bytes of
 * each stream, and of all streams of the process LIMIT bytes lie here at most. Of messages that are
 * wanted and not whole LIMIT_COMING do: whoever goes beyond with a long one is refused.
 *
 * It uses CPython's limited API, so that one build serves all versions, and needs the GIL.
 *
 * Owns: the module's types and what its files share. Must never: know a method or a model, or touch
 * a socket.
 */
#ifndef SHMGPU_PYTHON_HTTP2_HTTP2_H
#define SHMGPU_PYTHON_HTTP2_HTTP2_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "python/http2/nghttp2.h"

enum {
  SCRATCH_BYTES = 1 << 16, /* what one read may bring */
  WINDOW = 1 << 16,        /* bytes of a stream that nobody wants yet */
  WIDE_WINDOW = 1 << 20,   /* of one whose message is wanted, and is longer */
  CONNECTION_WINDOW = 1 << 24,
  PREFIX_BYTES = 5, /* before a message: whether it is compressed, and its length */
};

/* What is told of a stream. */
enum {
  OPENED = 1,
  MESSAGE = 2,
  ENDED = 4,       /* the client sends no more */
  COMPRESSED = 8,  /* the message is */
  BROKEN = 16,     /* what comes is no message of gRPC's */
  TOO_LARGE = 32,  /* the message would be */
  LONG_HEAD = 64,  /* the head was */
  NO_ROOM = 128,   /* too many bytes of messages lie here that are not whole */
};

/* The fields of a head that are told, in this order. */
enum { METHOD, PATH, CONTENT_TYPE, AUTHORIZATION, TIMEOUT, ENCODING, TRACEPARENT, FIELDS };

typedef struct stream {
  struct stream *next, *before; /* of the session */
  int32_t id;
  int flags; /* what is to be told next */
  bool is_touched, is_wanted, has_ended, is_answered, is_finished, has_head_sent;
  PyObject *head;    /* a tuple, until it is told */
  PyObject *message; /* bytes that are being filled, or are whole */
  size_t size, filled;
  bool is_compressed;
  uint8_t *raw; /* what came and is not in a message yet */
  size_t raw_begin, raw_end, raw_room;
  PyObject *going; /* the message that is being sent */
  uint8_t prefix[PREFIX_BYTES];
  size_t sent; /* of prefix and message */
  PyObject *trailers; /* bytes: status and sentence; NULL: all went well */
} stream_t;

typedef struct {
  PyObject_HEAD
  nghttp2_session *library;
  stream_t *streams;
  size_t most_head, most_message, most_unsent; /* of frames, besides data */
  /* The head that is being received: one at a time, as HTTP/2 has it. */
  uint8_t *head;
  size_t head_length, head_room, head_counted;
  int32_t in_head;      /* of this stream; 0: there is none */
  size_t in_head_bytes; /* that came since it began */
  PyObject *last_head, *last_fields; /* the one before, in bytes and as a tuple */
  int32_t *touched; /* streams of which something is to be told */
  size_t touched_count, touched_room;
  PyObject *progress; /* a list, or NULL: see Session.progress */
  double resets; /* of streams that the client may yet cause at once */
  double reset_at;
  bool has_failed; /* an exception is set */
} session_t;

extern uint8_t shmi_scratch[SCRATCH_BYTES];
extern size_t shmi_raw_total, shmi_raw_most; /* bytes of all streams in `raw`, and at most */
extern size_t shmi_coming_total, shmi_coming_most; /* the same in `message` */

/* Of the client's requests. */
int shmi_begin_headers(nghttp2_session *library, const nghttp2_frame *frame, void *session);
int shmi_header(nghttp2_session *library, const nghttp2_frame *frame, const uint8_t *name,
                size_t name_length, const uint8_t *value, size_t value_length, uint8_t flags,
                void *session);
int shmi_data(nghttp2_session *library, uint8_t flags, int32_t id, const uint8_t *data,
              size_t length, void *session);
int shmi_frame_came(nghttp2_session *library, const nghttp2_frame *frame, void *session);
int shmi_stream_closed(nghttp2_session *library, int32_t id, uint32_t code, void *session);

stream_t *shmi_stream(session_t *session, int32_t id); /* NULL: there is none */
void shmi_free_stream(session_t *session, stream_t *stream);
void shmi_drop_message(stream_t *stream); /* which came, or comes */
PyObject *shmi_event(stream_t *stream);                     /* what is to be told of it */
bool shmi_advance(session_t *session, stream_t *stream);    /* false with an exception */
PyObject *shmi_told(session_t *session);                    /* of all streams */
bool shmi_note(session_t *session, long what);              /* to be told by progress() */
void shmi_count_reset(session_t *session);                  /* one that the client caused */

/* Of answers. */
int shmi_frame_went(nghttp2_session *library, const nghttp2_frame *frame, void *session);
PyObject *shmi_answer(PyObject *session, PyObject *given);
PyObject *shmi_send(PyObject *session, PyObject *given);
PyObject *shmi_end(PyObject *session, PyObject *given);
PyObject *shmi_refuse(PyObject *session, PyObject *given);
PyObject *shmi_reset(PyObject *session, PyObject *id);
PyObject *shmi_pull(PyObject *session, PyObject *most);

int shmi_add_session(PyObject *module);

#endif
