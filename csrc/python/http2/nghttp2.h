/* nghttp2 -- what is used of libnghttp2, found when the module is loaded.
 *
 * The library is no part of the package, and not needed to build it: these are its declarations, as
 * far as they are used, in the form that libnghttp2.so.14 has had since its version 1.0. Functions
 * are called through a table that is filled from the library of the machine.
 *
 * Owns: the table. Must never: know a request.
 */
#ifndef SHMGPU_PYTHON_HTTP2_NGHTTP2_H
#define SHMGPU_PYTHON_HTTP2_NGHTTP2_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct nghttp2_session nghttp2_session;
typedef struct nghttp2_session_callbacks nghttp2_session_callbacks;
typedef struct nghttp2_option nghttp2_option;

typedef struct {
  uint8_t *name, *value;
  size_t namelen, valuelen;
  uint8_t flags;
} nghttp2_nv;

typedef struct {
  size_t length;
  int32_t stream_id;
  uint8_t type, flags, reserved;
} nghttp2_frame_hd;

/* A frame begins with its head; one of headers has more, of which the category is used. */
typedef struct {
  nghttp2_frame_hd hd;
  size_t padlen;
  struct {
    int32_t stream_id, weight;
    uint8_t exclusive;
  } pri_spec;
  nghttp2_nv *nva;
  size_t nvlen;
  int cat;
} nghttp2_headers;

typedef struct {
  nghttp2_frame_hd hd;
  uint32_t error_code;
} nghttp2_rst_stream;

typedef union {
  nghttp2_frame_hd hd;
  nghttp2_headers headers;
  nghttp2_rst_stream rst_stream;
} nghttp2_frame;

typedef struct {
  int32_t settings_id;
  uint32_t value;
} nghttp2_settings_entry;

typedef union {
  int fd;
  void *ptr;
} nghttp2_data_source;

typedef ssize_t (*nghttp2_data_source_read_callback)(nghttp2_session *, int32_t, uint8_t *, size_t,
                                                     uint32_t *, nghttp2_data_source *, void *);

typedef struct {
  nghttp2_data_source source;
  nghttp2_data_source_read_callback read_callback;
} nghttp2_data_provider;

typedef struct {
  int age, version_num;
  const char *version_str, *proto_str;
} nghttp2_info;

typedef int (*nghttp2_on_begin_headers)(nghttp2_session *, const nghttp2_frame *, void *);
typedef int (*nghttp2_on_header)(nghttp2_session *, const nghttp2_frame *, const uint8_t *, size_t,
                                 const uint8_t *, size_t, uint8_t, void *);
typedef int (*nghttp2_on_data)(nghttp2_session *, uint8_t, int32_t, const uint8_t *, size_t,
                               void *);
typedef int (*nghttp2_on_frame)(nghttp2_session *, const nghttp2_frame *, void *);
typedef int (*nghttp2_on_close)(nghttp2_session *, int32_t, uint32_t, void *);

enum {
  FRAME_DATA = 0,
  FRAME_HEADERS = 1,
  FRAME_RST_STREAM = 3,
  FLAG_END_STREAM = 1,
  CATEGORY_REQUEST = 0,
  NV_NO_COPY = 2 | 4, /* names and values are constants */
  DATA_EOF = 1,
  DATA_NO_END_STREAM = 2,
  SETTINGS_MAX_CONCURRENT_STREAMS = 3,
  SETTINGS_INITIAL_WINDOW_SIZE = 4,
  SETTINGS_MAX_HEADER_LIST_SIZE = 6,
  H2_NO_ERROR = 0,
  H2_REFUSED_STREAM = 7,
  H2_CANCEL = 8,
  H2_ENHANCE_YOUR_CALM = 11,
  ERROR_DEFERRED = -508,
  ERROR_CALLBACK_FAILURE = -902,
};

#define NGHTTP2_FUNCTIONS(F)                                                                       \
  F(nghttp2_info *, version, (int))                                                                \
  F(int, session_callbacks_new, (nghttp2_session_callbacks **))                                    \
  F(void, session_callbacks_set_on_begin_headers_callback,                                         \
    (nghttp2_session_callbacks *, nghttp2_on_begin_headers))                                       \
  F(void, session_callbacks_set_on_header_callback,                                                \
    (nghttp2_session_callbacks *, nghttp2_on_header))                                              \
  F(void, session_callbacks_set_on_data_chunk_recv_callback,                                       \
    (nghttp2_session_callbacks *, nghttp2_on_data))                                                \
  F(void, session_callbacks_set_on_frame_recv_callback,                                            \
    (nghttp2_session_callbacks *, nghttp2_on_frame))                                               \
  F(void, session_callbacks_set_on_frame_send_callback,                                            \
    (nghttp2_session_callbacks *, nghttp2_on_frame))                                               \
  F(void, session_callbacks_set_on_stream_close_callback,                                          \
    (nghttp2_session_callbacks *, nghttp2_on_close))                                               \
  F(int, option_new, (nghttp2_option **))                                                          \
  F(void, option_set_no_auto_window_update, (nghttp2_option *, int))                               \
  F(void, option_set_no_closed_streams, (nghttp2_option *, int))                                   \
  F(int, session_server_new2,                                                                      \
    (nghttp2_session **, const nghttp2_session_callbacks *, void *, const nghttp2_option *))       \
  F(void, session_del, (nghttp2_session *))                                                        \
  F(ssize_t, session_mem_recv, (nghttp2_session *, const uint8_t *, size_t))                       \
  F(ssize_t, session_mem_send, (nghttp2_session *, const uint8_t **))                              \
  F(int, session_want_read, (nghttp2_session *))                                                   \
  F(int, session_want_write, (nghttp2_session *))                                                  \
  F(size_t, session_get_outbound_queue_size, (nghttp2_session *))                                  \
  F(int, session_set_stream_user_data, (nghttp2_session *, int32_t, void *))                       \
  F(void *, session_get_stream_user_data, (nghttp2_session *, int32_t))                            \
  F(int, session_set_local_window_size, (nghttp2_session *, uint8_t, int32_t, int32_t))            \
  F(int, session_consume_connection, (nghttp2_session *, size_t))                                  \
  F(int, session_consume_stream, (nghttp2_session *, int32_t, size_t))                             \
  F(int, session_resume_data, (nghttp2_session *, int32_t))                                        \
  F(int, session_terminate_session, (nghttp2_session *, uint32_t))                                 \
  F(int32_t, session_get_last_proc_stream_id, (nghttp2_session *))                                 \
  F(int, submit_settings,                                                                          \
    (nghttp2_session *, uint8_t, const nghttp2_settings_entry *, size_t))                          \
  F(int, submit_response,                                                                          \
    (nghttp2_session *, int32_t, const nghttp2_nv *, size_t, const nghttp2_data_provider *))       \
  F(int, submit_trailer, (nghttp2_session *, int32_t, const nghttp2_nv *, size_t))                 \
  F(int, submit_rst_stream, (nghttp2_session *, uint8_t, int32_t, uint32_t))                       \
  F(int, submit_shutdown_notice, (nghttp2_session *))                                              \
  F(int, submit_goaway,                                                                            \
    (nghttp2_session *, uint8_t, int32_t, uint32_t, const uint8_t *, size_t))

#define NGHTTP2_POINTER(result, name, arguments) result(*name) arguments;
typedef struct {
  NGHTTP2_FUNCTIONS(NGHTTP2_POINTER)
} nghttp2_t;
#undef NGHTTP2_POINTER

extern nghttp2_t shmi_nghttp2;

/* Fill the table; NULL, or what the loader says that is missing. */
const char *shmi_find_nghttp2(void);

#endif
