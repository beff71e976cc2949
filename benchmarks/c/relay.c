/* relay.c -- the floor: what a dispatcher could reach if it had nothing to decide.
 *
 * Children write 64-byte frames into pipes, one process passes them on to helpers, helpers
 * send them back, the same process passes the answers to their children. There is nothing
 * in it but poll, read, write and an array: no check, no policy, no statistics, no
 * supervision, no memory behind the frames. It is meant to be fast, because it is what the
 * broker's dispatcher is held against:
 *   - everything that reads takes all there is, up to a page; everything that writes writes
 *     all it has in one call, also a child's several requests and its several answers;
 *   - a helper is handed up to --handover frames in one write, and topped up;
 *   - a child is woken once for all its answers of one round.
 * A window of 64 frames fits a page, and a pipe holds 16 of those: no write ever blocks.
 *
 * The calling process becomes the relay, as with shm_launch. Result: stage.h.
 */
#include "stage.h"

#include <poll.h>

enum { FRAME_BYTES = 64, PAGE_BYTES = 4096, FRAMES_PER_PAGE = PAGE_BYTES / FRAME_BYTES };

typedef struct {
  uint64_t function, params; /* the message */
  uint64_t sequence;
  uint16_t child; /* stamped by the relay: identity is the pipe */
  uint8_t rest[FRAME_BYTES - 26];
} frame_t;
_Static_assert(sizeof(frame_t) == FRAME_BYTES, "a frame is 64 bytes");

typedef struct {
  int in[2];  /* towards the process */
  int out[2]; /* from it */
} line_t;

/* A page of frames on its way to one child or helper. */
typedef struct {
  int count;
  frame_t frame[FRAMES_PER_PAGE];
} page_t;

static stage_options_t options;
static stage_t *stage;
static line_t lines[STAGE_MAX_CHILDREN + STAGE_MAX_HELPERS]; /* children first */
static page_t outbox[STAGE_MAX_CHILDREN];
static frame_t queue[STAGE_MAX_CHILDREN * STAGE_MAX_WINDOW]; /* a ring that cannot overflow */

/* Read what there is, in whole frames; 0 at the end of the stream. */
static int read_page(int fd, frame_t *frames)
{
  ssize_t n = read(fd, frames, PAGE_BYTES);
  if (n < 0)
    stage_die("read");
  return (int)((size_t)n / FRAME_BYTES);
}

static void write_page(int fd, const frame_t *frames, int count)
{
  size_t bytes = (size_t)count * FRAME_BYTES;
  if (write(fd, frames, bytes) != (ssize_t)bytes)
    stage_die("write");
}

static void run_helper(const line_t *line)
{
  frame_t frames[FRAMES_PER_PAGE];
  int count;
  while ((count = read_page(line->in[0], frames)) > 0) {
    if (options.service_us == 0)
      write_page(line->out[1], frames, count);
    for (int i = 0; i < count && options.service_us > 0; i++) {
      stage_serve(stage, &options);
      write_page(line->out[1], &frames[i], 1); /* whoever is served need not wait for the rest */
    }
  }
}

static void run_child(int child, const line_t *line)
{
  frame_t frames[FRAMES_PER_PAGE];
  uint64_t total = 0;
  if (!stage_enter(stage, &options, child))
    return;
  int timed = stage_timed(&options);
  memset(frames, 0, sizeof frames);
  int count = options.window;
  while (!stage_stopped(stage)) {
    uint64_t began_ns = timed ? stage_now_ns() : 0;
    write_page(line->out[1], frames, count);
    count = read_page(line->in[0], frames);
    if (timed)
      stage_sample(stage, stage_now_ns() - began_ns);
    total += (uint64_t)count;
    stage_count(stage, child, total);
  }
}

static void make_pipe(int ends[2])
{
  if (pipe(ends) != 0)
    stage_die("pipe");
}

/* Fork process number `who`; it keeps its own two ends and closes all others. */
static void start(int who, int lines_made)
{
  pid_t pid = fork();
  if (pid < 0)
    stage_die("fork");
  if (pid > 0)
    return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int i = 0; i < lines_made; i++) {
    close(lines[i].in[1]);
    close(lines[i].out[0]);
    if (i != who) {
      close(lines[i].in[0]);
      close(lines[i].out[1]);
    }
  }
  if (who < options.children)
    run_child(who, &lines[who]);
  else
    run_helper(&lines[who]);
  _exit(0);
}

/* Hand a child its answers; one that has left at the end of the run no longer wants them. */
static void answer(int fd, page_t *box)
{
  size_t bytes = (size_t)box->count * FRAME_BYTES;
  if (write(fd, box->frame, bytes) != (ssize_t)bytes && errno != EPIPE)
    stage_die("write");
  box->count = 0;
}

/* Pass frames on until every child has closed its pipe. */
static void relay(void)
{
  int children = options.children;
  int helpers = options.helpers;
  struct pollfd polled[STAGE_MAX_CHILDREN + STAGE_MAX_HELPERS];
  frame_t frames[FRAMES_PER_PAGE];
  int touched[STAGE_MAX_CHILDREN];
  int in_flight[STAGE_MAX_HELPERS] = {0};
  unsigned head = 0, tail = 0, capacity = sizeof queue / sizeof queue[0];
  int alive = children;
  int next = 0;

  for (int i = 0; i < children + helpers; i++)
    polled[i] = (struct pollfd){.fd = lines[i].out[0], .events = POLLIN};
  while (alive > 0) {
    int ready = poll(polled, (nfds_t)(children + helpers), -1);
    if (ready < 0)
      stage_die("poll");

    int touched_count = 0;
    for (int h = 0; h < helpers; h++) {
      if (polled[children + h].revents == 0)
        continue;
      ready--;
      int count = read_page(polled[children + h].fd, frames);
      in_flight[h] -= count;
      for (int i = 0; i < count; i++) {
        page_t *box = &outbox[frames[i].child];
        if (box->count == 0)
          touched[touched_count++] = frames[i].child;
        box->frame[box->count++] = frames[i];
      }
    }

    for (int c = 0; c < children && ready > 0; c++) {
      if (polled[c].revents == 0)
        continue;
      ready--;
      int count = read_page(polled[c].fd, frames);
      if (count == 0) {
        polled[c].fd = -1;
        alive--;
      }
      for (int i = 0; i < count; i++) {
        queue[head] = frames[i];
        queue[head].child = (uint16_t)c;
        head = head + 1 == capacity ? 0 : head + 1;
      }
    }

    /* Helpers first: they work while the answers are being handed out. */
    for (int n = 0; n < helpers && head != tail; n++) {
      int h = next;
      next = next + 1 == helpers ? 0 : next + 1;
      int count = 0;
      while (in_flight[h] + count < options.handover && head != tail) {
        frames[count++] = queue[tail];
        tail = tail + 1 == capacity ? 0 : tail + 1;
      }
      if (count > 0) {
        write_page(lines[children + h].in[1], frames, count);
        in_flight[h] += count;
      }
    }
    for (int i = 0; i < touched_count; i++) {
      page_t *box = &outbox[touched[i]];
      answer(lines[touched[i]].in[1], box);
    }
  }
}

int main(int argc, char **argv)
{
  options = stage_options(argc, argv);
  stage = stage_open();
  signal(SIGPIPE, SIG_IGN);
  pid_t clock = stage_start_clock(stage, &options);
  int total = options.children + options.helpers;
  for (int i = 0; i < total; i++) {
    make_pipe(lines[i].in);
    make_pipe(lines[i].out);
  }
  for (int i = 0; i < total; i++)
    start(i, total);
  for (int i = 0; i < total; i++) {
    close(lines[i].in[0]);
    close(lines[i].out[1]);
  }
  relay();
  int status = stage_report(stage, &options, "relay", clock);
  for (int i = 0; i < total; i++)
    close(lines[i].in[1]);
  while (wait(NULL) > 0) {
  }
  return status;
}
