/* The dispatcher between children and helpers that are played here, turn by turn. */
#include "peers.h"

/* ---- numbers of deliveries ---- */

/* All helpers and children do what they can, but for the frames that `spared` names. */
static void everybody_works(int children, int helpers, const shmi_frame_t *spared) {
  for (int idle = 0; idle < 2;) {
    int done = 0;
    turn();
    for (int h = 0; h < helpers; h++) {
      done += helper_reads(h);
      for (int i = 0; i < hands[h].count;) {
        if (spared != NULL && hands[h].frames[i].delivery == spared->delivery) {
          i++;
          continue;
        }
        helper_ends(h, i, SHM_OK);
        done++;
        if (done % 256 == 0) turn();
      }
    }
    turn();
    for (int slot = 0; slot < children; slot++) done += child_reads(slot);
    idle = done > 0 ? 0 : idle + 1;
  }
}

TEST_WITHIN(a_call_that_thousands_of_grows_overtake_keeps_its_number, 20) {
  enum { PARKERS = 34, EACH = 64 };
  static shmi_frame_t parked[PARKERS][EACH];
  peer_credit[0] = 64;
  open_peers(PARKERS + 1, 1, 1);
  for (int slot = 0; slot < PARKERS; slot++) {
    for (int i = 0; i < EACH; i++) child_calls(slot);
  }
  for (int left = PARKERS * EACH; left > 0;) { /* each is told to make room, and does not yet */
    turn();
    helper_reads(0);
    CHECK(hands[0].count > 0);
    while (hands[0].count > 0) helper_ends(0, 0, SHM_ENEEDS_SPACE), left--;
  }
  turn();
  for (int slot = 0; slot < PARKERS; slot++) {
    for (int i = 0; i < EACH; i++) {
      CHECK_EQ(shmi_channel_read(kids[slot].reply_fd, &parked[slot][i], 1), 1);
      CHECK_EQ(shmi_status_from_wire(parked[slot][i].status), SHM_ENEEDS_SPACE);
      kids[slot].parked++;
    }
  }
  child_calls(PARKERS);
  turn();
  helper_reads(0);
  CHECK_EQ(hands[0].count, 1);
  shmi_frame_t waits = hands[0].frames[0];
  for (int slot = 0; slot < PARKERS; slot++) {
    for (int i = 0; i < EACH; i++) child_grows(slot, &parked[slot][i]);
  }
  everybody_works(PARKERS, 1, &waits);
  CHECK_EQ(hands[0].count, 1); /* the call that all of them overtook */
  CHECK(hands[0].highest > waits.delivery + SHMI_BOARD_RING / 2);
  CHECK(hands[0].highest < waits.delivery + SHMI_BOARD_RING);
  CHECK_EQ(child_reads(PARKERS), 0);
  helper_ends(0, 0, SHM_OK);
  everybody_works(PARKERS + 1, 1, NULL);
  CHECK_EQ(kids[PARKERS].answered, 1);
  CHECK_EQ(kids[PARKERS].last.sequence, 1);
  for (int slot = 0; slot < PARKERS; slot++) CHECK_EQ(kids[slot].answered, EACH);
  expect_all_ended();
  close_peers();
}

TEST_WITHIN(a_call_that_thousands_of_calls_overtake_keeps_its_number_too, 20) {
  peer_credit[0] = 8;
  open_peers(3, 1, 1);
  child_calls(0);
  turn();
  helper_reads(0);
  shmi_frame_t waits = hands[0].frames[0];
  for (int i = 0; i < 3000; i++) { /* answered out of order, one after another */
    child_calls(1);
    turn();
    if (helper_reads(0) == 0) break;
    CHECK_EQ(hands[0].count, 2);
    helper_ends(0, 1, SHM_OK);
    turn();
    CHECK_EQ(child_reads(1), 1);
  }
  CHECK(hands[0].highest < waits.delivery + SHMI_BOARD_RING);
  CHECK(kids[1].answered > 500 && kids[1].answered < 1024);
  for (int i = 0; i < 40; i++) child_calls(2); /* these wait as well: not even a batch goes */
  turn();
  CHECK_EQ(helper_reads(0), 0);
  everybody_works(3, 1, NULL);
  CHECK_EQ(kids[0].answered, 1);
  CHECK_EQ(kids[2].answered, 40);
  expect_all_ended();
  close_peers();
}
