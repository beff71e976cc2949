/* The board: one writer a page, everybody reads, and the trace keeps the latest lives. */
#include "harness.h"

#include "board.h"

static void open_board(uint32_t records) { CHECK_EQ(shmi_board_create(3, 2, records), SHM_OK); }

static int ended_by(pid_t pid) {
  int status;
  CHECK_EQ(waitpid(pid, &status, 0), pid);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(without_a_broker_there_is_nothing_to_read) {
  shm_broker_stats_t broker;
  shm_child_stats_t child;
  shm_helper_stats_t helper;
  shm_trace_record_t record;
  uint64_t next = 0;
  CHECK_EQ(shm_get_broker_stats(&broker), SHM_ENOT_RUNNING);
  CHECK_EQ(shm_get_child_stats(0, &child), SHM_ENOT_RUNNING);
  CHECK_EQ(shm_get_helper_stats(0, &helper), SHM_ENOT_RUNNING);
  CHECK_EQ(shm_read_trace(&next, &record, 1), 0);
  shm_count_bytes(SHM_BYTES_GATHERED, 1); /* counts nowhere, and does no harm */
}

TEST(a_number_out_of_range_is_refused) {
  shm_child_stats_t child;
  shm_helper_stats_t helper;
  open_board(0);
  CHECK_EQ(shm_get_child_stats(-1, &child), SHM_EBAD_CONFIG);
  CHECK_EQ(shm_get_child_stats(3, &child), SHM_EBAD_CONFIG);
  CHECK_EQ(shm_get_child_stats(2, &child), SHM_OK);
  CHECK_EQ(shm_get_helper_stats(-1, &helper), SHM_EBAD_CONFIG);
  CHECK_EQ(shm_get_helper_stats(2, &helper), SHM_EBAD_CONFIG);
  CHECK_EQ(shm_get_helper_stats(1, &helper), SHM_OK);
  shm_count_bytes(-1, 5);
  shm_count_bytes(SHM_BYTES_KINDS, 5);
  shmi_board_destroy();
}

TEST(what_a_role_counts_the_others_read) {
  open_board(0);
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    CHECK_EQ(shmi_board_become(SHM_ROLE_HELPER, 1), SHM_OK);
    shm_count_bytes(SHM_BYTES_COPIED_OUT, 100);
    shm_count_bytes(SHM_BYTES_COPIED_OUT, 11);
    shmi_count(&shmi_board_helper(1)->frames_sent, 7);
    _exit(0);
  }
  CHECK_EQ(ended_by(pid), 0);
  shm_helper_stats_t helper;
  CHECK_EQ(shm_get_helper_stats(1, &helper), SHM_OK);
  CHECK_EQ(helper.bytes[SHM_BYTES_COPIED_OUT], 111);
  CHECK_EQ(helper.frames_sent, 7);
  CHECK_EQ(shm_get_helper_stats(0, &helper), SHM_OK);
  CHECK_EQ(helper.bytes[SHM_BYTES_COPIED_OUT], 0);
  shmi_board_destroy();
}

/* Each row: in this role, writing there ends the process, or does not. */
TEST(a_role_writes_its_own_page_and_no_other) {
  open_board(64);
  const shmi_board_t *board = shmi_board();
  struct {
    int role, index;
    volatile void *at;
    int allowed;
  } rows[] = {
      {SHM_ROLE_CHILD, 1, shmi_board_child(1), 1},
      {SHM_ROLE_CHILD, 1, shmi_board_child(0), 0},
      {SHM_ROLE_CHILD, 1, shmi_board_child(2), 0},
      {SHM_ROLE_CHILD, 1, shmi_board_helper(0), 0},
      {SHM_ROLE_CHILD, 1, board->broker, 0},
      {SHM_ROLE_CHILD, 1, board->trace, 0},
      {SHM_ROLE_HELPER, 0, shmi_board_helper(0), 1},
      {SHM_ROLE_HELPER, 0, &shmi_board_helper(0)->finished[SHMI_BOARD_RING - 1], 1},
      {SHM_ROLE_HELPER, 0, shmi_board_helper(1), 0},
      {SHM_ROLE_HELPER, 0, shmi_board_child(2), 0},
      {SHM_ROLE_HELPER, 0, board->child_stats, 0},
  };
  fflush(NULL);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      signal(SIGSEGV, SIG_DFL);
      CHECK_EQ(shmi_board_become(rows[i].role, rows[i].index), SHM_OK);
      *(volatile uint64_t *)rows[i].at = 1;
      _exit(0);
    }
    int ended = ended_by(pid);
    if (ended != (rows[i].allowed ? 0 : -SIGSEGV))
      harness_fail(__FILE__, __LINE__, "row %zu ended with %d", i, ended);
  }
  shmi_board_destroy();
}

TEST(a_new_helper_starts_with_an_empty_control_page_and_the_old_counters) {
  open_board(0);
  shmi_helper_page_t *page = shmi_board_helper(0);
  atomic_store(&page->executing, 99);
  atomic_store(&page->finished[5].delivery, 5);
  shmi_count(&page->frames_received, 3);
  shmi_board_reset_helper(0);
  CHECK_EQ(atomic_load(&page->executing), 0);
  CHECK_EQ(atomic_load(&page->finished[5].delivery), 0);
  CHECK_EQ(atomic_load(&page->frames_received), 3);
  shmi_board_destroy();
}

TEST(the_trace_keeps_the_latest_records_in_order) {
  open_board(64);
  shm_trace_record_t got[200];
  uint64_t next = 0;
  for (uint64_t i = 0; i < 10; i++) shmi_board_trace(&(shm_trace_record_t){.sequence = i});
  CHECK_EQ(shm_read_trace(&next, got, 4), 4);
  CHECK_EQ(shm_read_trace(&next, got + 4, 200), 6);
  for (uint64_t i = 0; i < 10; i++) CHECK_EQ(got[i].sequence, i);
  CHECK_EQ(shm_read_trace(&next, got, 200), 0);
  for (uint64_t i = 10; i < 210; i++) shmi_board_trace(&(shm_trace_record_t){.sequence = i});
  CHECK_EQ(shm_read_trace(&next, got, 200), 64);
  for (uint64_t i = 0; i < 64; i++) CHECK_EQ(got[i].sequence, 146 + i);
  CHECK_EQ(next, 210);
  shmi_board_destroy();
}

TEST(a_trace_of_nothing_costs_nothing) {
  open_board(0);
  shmi_board_trace(&(shm_trace_record_t){.sequence = 1});
  uint64_t next = 0;
  shm_trace_record_t got;
  CHECK_EQ(shm_read_trace(&next, &got, 1), 0);
  CHECK_EQ(shmi_board()->broker->trace_written, 0);
  shmi_board_destroy();
}

TEST(making_and_destroying_leaves_nothing) {
  int fds = harness_open_fds();
  for (int i = 0; i < 20; i++) {
    open_board(1000);
    shmi_board_destroy();
  }
  CHECK(shmi_board() == NULL);
  CHECK_EQ(harness_open_fds(), fds);
  CHECK_EQ(harness_mappings("shmgpu-board"), 0);
}
