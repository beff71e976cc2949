"""Which line of the source is each row's protection, what switches it off, which test must see it.

A row is one `Mutant(...)`: the row's number or a theme, the file, the text that protects (it must
stand there exactly once), what to put in its place, and the test that must fail then. The matrix
needs no rows here: it is held by those of the rows that it crosses.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One protection, switched off."""

    row: str
    file: str
    text: str
    off: str
    test: str


HELPER_DEATHS = "tests/crash/test_helper_deaths.py::"
GANGS = "tests/crash/test_gangs.py::"
HANGS = "tests/crash/test_hangs.py::"
CONTAINERS = "tests/crash/test_containers.py::"
ORPHANS = "tests/crash/test_orphans.py::"
PROCESSES = "tests/crash/test_processes.py::"
START = "tests/crash/test_start.py::"
WAITING = "tests/crash/test_waiting.py::"
DEVICE_FAILURES = "tests/crash/test_device_failures.py::"
CHILDREN = "tests/crash/test_children.py::"
ENDINGS = "tests/crash/test_endings.py::"
STORM = "tests/crash/test_storm.py::"
HOSTILE = "tests/hostile/test_children.py::"
IN_C = "tests/hostile/test_in_c.py::"
DUMPS = "tests/attach/test_dumps.py::"
PICKLES = "tests/attach/test_pickles.py::"
ENDPOINT = "tests/attach/test_endpoint.py::"
ATTACHED = "tests/attach/test_connect.py::"
AUTOMATIC = "tests/attach/test_automatic.py::"
IDENTITY = "tests/unit/test_identity.py::"
HANDED_OUT = "tests/attach/test_handed_out.py::"
DESCENDANTS = "tests/crash/test_descendants.py::"
PINNED = "tests/unit/test_device.py::"
FUTURES = "tests/broker/test_futures.py::"
BROADCASTS = "tests/crash/test_broadcasts.py::"
INTERRUPTED = "tests/broker/test_interrupted.py::"
BETWEEN = "tests/attach/test_interrupted.py::"

CORE = "tests/unit/test_core_in_c.py::"
ORDER = "tests/broker/test_order.py::"
WINDOWS = "tests/broker/test_windows.py::"
LAUNCH = "tests/broker/test_launch.py::"
PARKING = "tests/unit/test_parking.py::"
SCALE = "tests/attach/test_scale.py::"
MUTATES = "tests/broker/test_mutates.py::"
KEPT = "tests/broker/test_arena_size.py::"
SENTENCES = "tests/attach/test_sentences.py::"
MESHES = "tests/meshes/test_deaths.py::"

MUTANTS = [
    Mutant(
        "F01",
        "csrc/broker/dispatch_helpers.c",
        "(!was_executing ||",
        "(0 ||",
        HELPER_DEATHS + "test_f01_only_the_executing_call_fails_and_every_other_runs_exactly_once",
    ),
    Mutant(
        "F01",
        "csrc/broker/dispatch_helpers.c",
        "(may_repeat && r->attempts < 2)",
        "(may_repeat && r->attempts < 3)",
        HELPER_DEATHS + "test_f01_an_idempotent_call_is_made_once_more_and_never_a_third_time",
    ),
    Mutant(
        "F01",
        "csrc/broker/supervise_roles.c",
        "(uint64_t)BACKOFF_FIRST_MS << doublings",
        "(uint64_t)BACKOFF_FIRST_MS >> (doublings + 8)",
        HELPER_DEATHS + "test_f01_a_replacement_comes_after_pauses_that_double",
    ),
    Mutant(
        "F01",
        "csrc/broker/supervise_roles.c",
        "int given_up = helper->short_deaths >= config->max_deaths;",
        "int given_up = 0;",
        HELPER_DEATHS + "test_f01_five_quick_deaths_end_the_launch_with_the_reason",
    ),
    Mutant(
        "F02",
        "csrc/broker/dispatch_children.c",
        "  if (child->in_flight > 0) return;\n  shmi_dispatch_leave_quarantine(d, slot);",
        "  shmi_dispatch_leave_quarantine(d, slot);",
        CHILDREN
        + "test_f02_an_arena_is_kept_from_use_until_no_helper_can_write_to_it_and_then_is_zero",
    ),
    Mutant(
        "F02",
        "csrc/broker/dispatch_assign.c",
        "if (child->wants_clearing) {",
        "if (0) {",
        CHILDREN
        + "test_f02_an_arena_is_kept_from_use_until_no_helper_can_write_to_it_and_then_is_zero",
    ),
    Mutant(
        "F04",
        "shmgpu/broker/role_host.py",
        "faulthandler.enable(self.helper_stacks.descriptor(helper_number))",
        "faulthandler.disable()",
        HELPER_DEATHS + "test_f04_any_end_inside_a_call_is_a_death",
    ),
    Mutant(
        "F05",
        "shmgpu/common/devices.py",
        "            self.empty_cache()\n            return False",
        "            return True",
        DEVICE_FAILURES + "test_f05_out_of_device_memory_is_the_callers_error_and_the_helper_lives",
    ),
    Mutant(
        "F05",
        "shmgpu/common/devices.py",
        "return is_of_device(error) and self.is_beyond_use()",
        "return False",
        DEVICE_FAILURES
        + "test_f05_after_a_sticky_error_the_caller_is_answered_and_the_helper_replaced",
    ),
    Mutant(
        "F05",
        "csrc/process/role.c",
        "shmi_process_offer_to_oom();",
        "",
        DEVICE_FAILURES + "test_f05_the_kernel_takes_a_role_before_the_parent",
    ),
    Mutant(
        "F05",
        "shmgpu/broker/events.py",
        "self._memory.rose()",
        "False",
        DEVICE_FAILURES + "test_f05_a_kill_that_the_kernel_counts_is_told_as_want_of_memory",
    ),
    Mutant(
        "F06",
        "csrc/broker/dispatch_helpers.c",
        "if (due <= now_ns) hung |= UINT64_C(1) << h;",
        "if (due <= now_ns) continue;",
        HANGS + "test_f06_a_call_beyond_its_hang_after_ends_its_helper",
    ),
    Mutant(
        "F06",
        "csrc/broker/supervise_roles.c",
        "helper->kill_ns = at_ns + HANG_GRACE_MS * SHMI_MS;",
        "helper->kill_ns = 0;",
        HANGS + "test_f06_a_call_beyond_its_hang_after_ends_its_helper",
    ),
    Mutant(
        "F06",
        "csrc/broker/dispatch_helpers.c",
        "if (hang_after_ns == 0) continue;",
        "if (0) continue;",
        HANGS + "test_f06_a_function_without_hang_after_may_take_as_long_as_it_likes",
    ),
    Mutant(
        "F06",
        "csrc/broker/supervise.c",
        "    if (next_ns != 0 && at_ns > next_ns + STOPPED_MS * MS) {",
        "    if (0) {",
        HANGS + "test_f06_a_call_does_not_hang_while_the_whole_job_is_stopped",
    ),
    Mutant(
        "F06",
        "shmgpu/child/port.py",
        "            self._struck.append((call, (args, kwargs), []))\n",
        "",
        HANGS + "test_f06_a_deadline_frees_its_caller_and_nothing_else_happens",
    ),
    Mutant(
        "F03",
        "csrc/process/process.c",
        "if (prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0) != 0) return SHM_ESYSTEM;",
        "(void)signal;",
        ORPHANS
        + "test_f03_when_the_parent_of_a_launch_is_killed_every_role_is_gone_within_two_seconds",
    ),
    Mutant(
        "F17",
        "csrc/process/role.c",
        "shmi_descriptor_keep_only(ends, count);",
        "(void)ends, (void)count;",
        PROCESSES + "test_f17_each_role_holds_its_own_descriptors_and_the_users_and_no_others",
    ),
    Mutant(
        "F17",
        "csrc/process/process.c",
        "shmi_descriptor_close(&process->pidfd);",
        "process->pidfd = -1;",
        PROCESSES + "test_f17_after_many_respawns_every_role_holds_what_it_held",
    ),
    Mutant(
        "F18",
        "csrc/broker/process_table.c",
        "shmi_poll_set_add(&table.poll_set, process->pidfd, SHMI_POLL_READABLE, kind, index);",
        "process->pidfd + kind + index > 0 ? SHM_OK : SHM_ESYSTEM;",
        PROCESSES + "test_f18_a_helper_that_dies_is_noticed_at_once_whoever_was_forked_later",
    ),
    Mutant(
        "F19",
        "csrc/process/process.c",
        "waitid((idtype_t)P_PIDFD, (id_t)process->pidfd,",
        "waitid(P_ALL, 0,",
        PROCESSES + "test_f19_no_zombie_is_left_and_the_users_subprocesses_keep_their_exit_status",
    ),
    Mutant(
        "F19",
        "csrc/process/pid1.c",
        "getpid() != 1 || has_subprocesses()",
        "getpid() != 0",
        CONTAINERS + "test_f19_pid_1_reaps_every_orphan_and_no_subprocess_of_the_users",
    ),
    Mutant(
        "F19",
        "csrc/process/pid1.c",
        "getpid() != 1 || has_subprocesses()",
        "getpid() != 1 || (0 && has_subprocesses())",
        CONTAINERS + "test_f19_pid_1_with_subprocesses_of_its_own_stays_and_keeps_their_status",
    ),
    Mutant(
        "F20",
        "csrc/process/signals.c",
        "sigaction(SIGCHLD, &standard, &kept.caller_chld);",
        "sigaction(SIGCHLD, NULL, &kept.caller_chld);",
        PROCESSES + "test_f20_with_sigchld_ignored_it_is_known_how_a_child_ended",
    ),
    Mutant(
        "F21",
        "csrc/process/process.c",
        "syscall(SYS_pidfd_send_signal, process->pidfd, signal, NULL, 0) == 0",
        "kill(process->pid, signal) == 0",
        PROCESSES + "test_f21_a_stranger_that_got_the_pid_of_a_dead_role_is_never_signalled",
    ),
    Mutant(
        "F23",
        "csrc/memory/arena.c",
        "int status = check_memory(*payload, scratches);",
        "int status = SHM_OK;",
        CONTAINERS + "test_f23_a_limit_of_the_cgroup_is_a_clear_error_at_launch",
    ),
    Mutant(
        "F23",
        "csrc/memory/arena.c",
        "if (*addresses > room) {",
        "if (*addresses > UINT64_MAX - room % 2) {",
        CONTAINERS + "test_f23_a_limit_of_the_address_space_is_a_clear_error_at_launch",
    ),
    Mutant(
        "F24",
        "csrc/child/port_replies.c",
        "if (tick_fd < 0) return",
        "if (1) return",
        WAITING + "test_f24_ctrl_c_is_heard_however_soon_after_the_call_it_comes",
    ),
    Mutant(
        "F24",
        "shmgpu/child/port.py",
        "while status == core.EINTR or status == core.ENEEDS_SPACE:",
        "while status == core.ENEEDS_SPACE:",
        WAITING + "test_f24_a_storm_of_signals_in_every_process_changes_no_result",
    ),
    Mutant(
        "F26",
        "csrc/broker/dispatch_helpers.c",
        "shmi_poll_set_remove_and_close(&d->poll_set, &d->helpers[h].up_fd);",
        "shmi_poll_set_rearm(&d->poll_set, d->helpers[h].up_fd, SHMI_POLL_READABLE, "
        "SHMI_WATCHED_HELPER, h);",
        WAITING + "test_f26_a_helper_that_hangs_up_and_lives_on_costs_the_dispatcher_nothing",
    ),
    Mutant(
        "F27",
        "csrc/ipc/pipe.c",
        "if (n < 0 && saved == EPIPE && !was_pending) swallow_sigpipe(&pipe_set);",
        "if (was_pending > 1) swallow_sigpipe(&pipe_set);",
        WAITING
        + "test_f27_a_broken_pipe_of_ours_is_the_peers_death_and_the_users_own_stays_a_signal",
    ),
    Mutant(
        "F28",
        "shmgpu/broker/launch_config.py",
        "    if others:",
        "    if False:",
        START + "test_f28_a_start_with_threads_running_is_refused_and_names_them",
    ),
    Mutant(
        "F28",
        "shmgpu/broker/launch_config.py",
        "on_cpu and device.openmp_pool_is_used(forks=True)",
        "not on_cpu",
        START + "test_f28_after_a_used_openmp_pool_helpers_compute_with_one_thread_and_a_warning",
    ),
    Mutant(
        "F28",
        "shmgpu/broker/launch_config.py",
        "if threading.current_thread() is not threading.main_thread():",
        "if False:",
        START + "test_f28_a_launch_outside_the_main_thread_is_refused",
    ),
    Mutant(
        "F28",
        "shmgpu/broker/launch.py",
        'if why_not_fork("init()") or _openmp_pool_would_be_lost():',
        'if why_not_fork("init()"):',
        START
        + "test_f28_an_init_after_a_used_openmp_pool_starts_afresh_and_helpers_have_their_threads",
    ),
    Mutant(
        "F29",
        "shmgpu/common/devices.py",
        "return torch is not None and bool(torch.cuda.is_initialized())",
        "return False",
        START + "test_f29_a_start_after_cuda_was_initialised_is_refused_in_a_sentence",
    ),
    Mutant(
        "F01",
        "csrc/broker/supervise_roles.c",
        "fail(helper->failed ? SHM_ESESSION : SHM_ENO_HELPERS);",
        "fail(SHM_ENO_HELPERS);",
        HELPER_DEATHS
        + "test_f01_replacements_that_cannot_make_their_session_end_the_launch_with_that",
    ),
    Mutant(
        "F30",
        "csrc/process/signals.c",
        "role == SHM_ROLE_HELPER ? &term : &standard",
        "role == SHM_ROLE_NONE ? &term : &standard",
        ENDINGS + "test_f30_a_whole_process_group_that_is_told_ends_in_order",
    ),
    Mutant(
        "F30",
        "csrc/process/pid1.c",
        "if (!is_echo && !is_of_terminal(info))",
        "if (!is_echo && is_of_terminal(info) < 2)",
        CONTAINERS + "test_f30_ctrl_c_at_a_containers_terminal_arrives_once",
    ),
    Mutant(
        "F31",
        "shmgpu/core/hosting.py",
        "except OSError as error:  # not a failure of the host",
        "except ZeroDivisionError as error:  # not a failure of the host",
        START + "test_f31_a_fork_that_fails_ends_the_start_with_its_reason",
    ),
    Mutant(
        "F34",
        "shmgpu/broker/role_host.py",
        "        flush()\n        with warnings",
        "        with warnings",
        START + "test_f34_nothing_buffered_is_printed_twice_and_no_exit_hook_runs_twice",
    ),
    Mutant(
        "F02",
        "csrc/broker/supervise_roles.c",
        "children[index].reason});\n  shmi_dispatch_clear_child(dispatch, index);",
        "children[index].reason});",
        ATTACHED + "test_f02_the_arena_of_a_client_that_dies_in_a_call_is_clean_for_the_next",
    ),
    Mutant(
        "F02",
        "csrc/broker/dispatch_assign.c",
        "if (shmi_arena_renew(slot) != SHM_OK) {",
        "if (0) {",
        DESCENDANTS + "test_f02_what_a_dead_child_forked_never_writes_into_its_successors_arena",
    ),
    Mutant(
        "F02",
        "csrc/broker/dispatch_assign.c",
        "if ((d->children[slot].mapped_by >> h & 1) == 0) {",
        "if (0) {",
        DESCENDANTS + "test_f02_many_lives_in_one_place_leave_nothing_with_the_helpers",
    ),
    Mutant(
        "F02",
        "csrc/helper/helper_port.c",
        "madvise(at, bytes, MADV_REMOVE) != 0) memset",
        "1) memset",
        DESCENDANTS + "test_f02_an_arena_is_given_back_though_a_daemon_of_its_dead_child_keeps_it",
    ),
    Mutant(
        "trust",
        "shmgpu/common/devices.py",
        "if size == 0 or child in self._refused or self._is_old(child):",
        "if size == 0 or child in self._refused:",
        PINNED
        + "test_the_memory_of_who_has_left_is_let_go_of_and_the_next_ones_registered_when_it_"
        "is_used",
    ),
    Mutant(
        "trust",
        "csrc/ipc/scoreboard.c",
        "F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0",
        "F_SEAL_SEAL) != 0",
        HANDED_OUT
        + "test_a_receiver_can_change_what_is_its_own_and_nothing_that_others_use[False]",
    ),
    Mutant(
        "trust",
        "shmgpu/attach/manifest.py",
        "fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)",
        "assert _SEALS",
        HANDED_OUT + "test_a_manifest_can_be_changed_by_nobody_not_even_who_wrote_it",
    ),
    Mutant(
        "F35",
        "csrc/child/attach.c",
        "  keep_privately(mapping, bytes);\n",
        "  (void)keep_privately;\n",
        ATTACHED + "test_f35_what_a_client_keeps_is_its_own_when_it_has_left",
    ),
    Mutant(
        "F35",
        "csrc/broker/supervise_roles.c",
        "        shmi_dispatch_remove_child(dispatch, i);\n        break;\n      default:",
        "        release_caller(i);\n        break;\n      default:",
        ATTACHED + "test_f35_the_arena_of_a_client_that_errs_is_given_to_nobody_while_it_lives",
    ),
    Mutant(
        "F35",
        "csrc/broker/process_table.c",
        "if (child->kind != SHMI_CHILD_FORKED || child->process.pid == 0) return 0;",
        "if (child->process.pid == 0) return 0;",
        ORPHANS + "test_f35_a_process_that_the_user_forked_is_cleaned_up_after_and_never_signalled",
    ),
    Mutant(
        "F30",
        "csrc/broker/supervise.c",
        "    enter_phase(SHMI_PHASE_DRAINING);\n    shmi_dispatch_hold(dispatch, 1);",
        "    begin_ending(SIGTERM);",
        ENDINGS
        + "test_f30_what_a_helper_executes_is_finished_and_answered_before_children_are_told",
    ),
    Mutant(
        "F30",
        "csrc/broker/supervise.c",
        "if (!is_first) kill_all();",
        "(void)is_first;",
        ENDINGS + "test_f30_a_second_signal_ends_everything_at_once",
    ),
    Mutant(
        "F33",
        "csrc/broker/dispatch_replies.c",
        "if (child->state != SHMI_PEER_UP || child->generation != r->frame.generation) {",
        "if (0) {",
        CHILDREN + "test_f33_a_reply_of_an_old_generation_is_dropped_and_counted",
    ),
    Mutant(
        "F36",
        "csrc/broker/dispatch_helpers.c",
        "memory_order_acquire) == delivery ? outcome : NULL;",
        "memory_order_acquire) == delivery && 0 ? outcome : NULL;",
        HELPER_DEATHS + "test_f36_a_reply_that_died_with_its_helper_is_answered_exactly_once",
    ),
    Mutant(
        "F07",
        "csrc/broker/dispatch_children.c",
        "    d->children[slot].state = SHMI_PEER_OFFENDED;\n    d->flags |= SHMI_TURN_OFFENDED;",
        "    (void)0;",
        HOSTILE
        + "test_f07_random_frames_end_the_child_that_sent_them_and_leave_the_others_results",
    ),
    Mutant(
        "F07",
        "csrc/broker/dispatch_children.c",
        "  if (child->outstanding >= child->window) {",
        "  if (0) {",
        IN_C + "test_f07_a_flood_beyond_the_window_ends_the_child_that_floods_and_nobody_else",
    ),
    Mutant(
        "F07",
        "csrc/broker/schedule_queues.c",
        "if (++ring->turns < s->weights[child]) return;",
        "if (++ring->turns < 1000000) return;",
        IN_C + "test_f07_full_windows_of_others_let_a_lone_call_pass_in_its_turn",
    ),
    Mutant(
        "F08",
        "csrc/broker/dispatch_replies.c",
        "        child->outstanding--;\n",
        "        child->outstanding -= 0;\n",
        HOSTILE + "test_f08_a_child_that_never_reads_its_replies_holds_nobody_up_and_is_not_ended",
    ),
    Mutant(
        "F09",
        "shmgpu/child/memory.py",
        "if not 0 < size < 1 << 63:",
        "if False:",
        HOSTILE + "test_f09_an_array_that_cannot_be_had_says_what_was_asked_and_what_is_free",
    ),
    Mutant(
        "F10",
        "csrc/memory/tlsf.c",
        "  if (offset & (SHMI_TLSF_GRANULE - 1)) return false;\n",
        "",
        HOSTILE + "test_f10_a_block_is_freed_once_by_its_own_address_and_by_nothing_else",
    ),
    Mutant(
        "F11",
        "shmgpu/helper/batch_executor.py",
        "rows[index] + more <= limit and _goes_with(group[0][1], call)",
        "_goes_with(group[0][1], call) or True",
        HOSTILE + "test_f11_a_call_with_anothers_batch_key_does_not_spoil_the_others_batch",
    ),
    Mutant(
        "F11",
        "shmgpu/helper/parked_results.py",
        "        self.take(key)  # a child may give two calls one number\n",
        "",
        HOSTILE + "test_f11_two_calls_under_one_number_do_not_use_up_the_place_of_parked_results",
    ),
    Mutant(
        "F12",
        "csrc/ipc/function_table.c",
        "return table->by_address[slot] != 0 ? &table->rows[table->by_address[slot] - 1] : NULL;",
        "return &table->rows[table->by_address[slot] != 0 ? table->by_address[slot] - 1 : 0];",
        HOSTILE + "test_f12_an_address_that_is_no_functions_row_is_never_called",
    ),
    Mutant(
        "F13",
        "csrc/broker/dispatch_children.c",
        "else status = shmi_frame_check_params(frame, &bounds, function->params_bytes);",
        "else status = SHM_OK;",
        HOSTILE + "test_f13_parameters_that_are_not_a_block_of_ones_own_arena_are_refused",
    ),
    Mutant(
        "F14",
        "shmgpu/helper/block_reader.py",
        "if not first <= address <= end - spec.nbytes:",
        "if not self._views.origin <= address:",
        HOSTILE + "test_f14_arrays_and_results_in_another_childs_arena_are_refused",
    ),
    Mutant(
        "F14",
        "shmgpu/helper/block_reader.py",
        "if not (first <= address <= end and size <= end - address):",
        "if address < self._views.origin:",
        HOSTILE + "test_f14_arrays_and_results_in_another_childs_arena_are_refused",
    ),
    Mutant(
        "F15",
        "csrc/helper/helper_port.c",
        "!shmi_range_inside(shmi_arena_address(frame->slot), shmi_arena_bytes(), address, "
        "*bytes)) {",
        "0) {",
        IN_C + "test_f15_a_block_length_that_changes_during_the_call_is_read_once",
    ),
    Mutant(
        "F16",
        "shmgpu/codec/dtypes.py",
        "(?:[1-9]\\d{0,8})?(?:Y",
        "[1-9]?\\d{0,8}(?:Y",
        HOSTILE + "test_f16_a_time_unit_of_zero_which_numpy_divides_by_is_no_element_type",
    ),
    Mutant(
        "F16",
        "shmgpu/helper/block_reader.py",
        "except Exception as error:  # a shape",
        "except ZeroDivisionError as error:  # a shape",
        HOSTILE + "test_f16_a_shape_that_numpy_refuses_costs_its_own_call_only",
    ),
    Mutant(
        "F25",
        "csrc/broker/dispatch_replies.c",
        "if (written < count) return 0;",
        "if (written < count) forget_replies(d, child);",
        HOSTILE + "test_f25_replies_that_do_not_fit_a_full_pipe_arrive_when_there_is_room_again",
    ),
    Mutant(
        "F25",
        "csrc/child/port_replies.c",
        "if (shmi_port.growing.count > 0) {",
        "if (0) {",
        FUTURES + "test_f25_a_blocking_call_serves_those_that_fill_the_window_and_ask_for_room",
    ),
    Mutant(
        "F24",
        "shmgpu/child/port.py",
        "            self._out[ticket.number] = ticket\n            self._queue.append(ticket)",
        "            self._queue.append(ticket)\n            self._out[ticket.number] = ticket",
        INTERRUPTED + "test_f24_a_signal_handler_may_call_at_any_moment",
    ),
    Mutant(
        "F30",
        "shmgpu/child/port.py",
        "            if status < 0:\n                status = self._go_on(call, target, status)\n"
        "        except BaseException:\n            self._out[STRUCK] = None\n"
        "            self._struck.append((call, (args, kwargs), []))",
        "        except BaseException:\n            self._struck.clear()",
        INTERRUPTED + "test_f30_an_exception_from_a_signal_handler_costs_no_other_call_anything",
    ),
    Mutant(
        "interrupted",
        "shmgpu/common/termination.py",
        "    if signal.getsignal(signal.SIGTERM) is _unwind:\n        end_at_once()\n",
        "",
        DESCENDANTS + "test_sigterm_ends_what_a_child_forked_however_early_it_comes",
    ),
    Mutant(
        "interrupted",
        "csrc/process/signals.c",
        "if (info->si_pid != getppid()) return;",
        "if (info != NULL) return;",
        DESCENDANTS + "test_sigterm_ends_what_a_session_forked",
    ),
    Mutant(
        "interrupted",
        "csrc/child/port_replies.c",
        "return own > 0 && own == shmi_port.outstanding;",
        "return 0;",
        INTERRUPTED + "test_a_signal_handler_that_would_wait_for_the_call_it_interrupts_is_told_so",
    ),
    Mutant(
        "interrupted",
        "csrc/child/port.c",
        "(number != 0 && number != shmi_port.epoch + 1)",
        "0",
        "tests/attach/test_threads.py::"
        "test_a_thread_that_was_held_up_sends_nothing_to_the_next_broker",
    ),
    Mutant(
        "interrupted",
        "shmgpu/child/replies.py",
        "            _thread.start_new_thread(self._launch, (reader,))",
        "            reader.start()",
        INTERRUPTED + "test_an_exception_may_break_off_what_the_last_one_left_to_be_done",
    ),
    Mutant(
        "interrupted",
        "shmgpu/child/replies.py",
        "                if self._struck or STRUCK in self._out:  # the mark alone: broken off\n"
        "                    self._tidy()\n",
        "",
        INTERRUPTED + "test_an_exception_may_break_off_what_the_last_one_left_to_be_done",
    ),
    Mutant(
        "interrupted",
        "shmgpu/child/replies.py",
        "                for inbox in inboxes:  # others",
        "                for inbox in inboxes[:1]:  # others",
        FUTURES + "test_whoever_has_its_end_goes_on_where_another_thread_was_interrupted",
    ),
    Mutant(
        "calls",
        "shmgpu/child/futures.py",
        "            if not readers.turns % TURNS:",
        "            if False:",
        "tests/broker/test_event_loops.py::"
        "test_who_does_nothing_but_await_calls_lets_others_of_its_loop_go_on",
    ),
    Mutant(
        "calls",
        "shmgpu/functions.py",
        "    started.reader.look_after(loop, port)\n",
        "",
        "tests/broker/test_event_loops.py::test_a_call_that_nobody_awaits_ends_all_the_same",
    ),
    Mutant(
        "calls",
        "shmgpu/helper/block_reader.py",
        "        self.known.pop(data, None)  # it may be another function's\n",
        "",
        "tests/unit/test_known_calls.py::test_the_same_block_of_another_function_is_that_ones",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/known.c",
        "  return !known->is_declared || found",
        "  return true || found",
        "tests/unit/test_known_calls.py::test_a_call_ends_as_where_python_runs_it",
    ),
    Mutant(
        "calls",
        "shmgpu/helper/process.py",
        "                    helper.caller = slot, generation\n",
        "",
        "tests/broker/test_calls.py::test_a_function_knows_whose_call_it_runs",
    ),
    Mutant(
        "calls",
        "shmgpu/child/futures.py",
        "        if self.looks() is not port:\n            import",
        "        if self.looks is _none:\n            import",
        "tests/unit/test_future_objects.py::"
        "test_a_loop_that_called_through_another_port_before_looks_after_the_calls_of_the_new_one",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/future.c",
        "  if (tried == NULL) give_up(self);",
        "  if (false && tried == NULL) give_up(self);",
        "tests/broker/test_event_loops.py::"
        "test_what_a_signal_handler_raises_gives_the_call_up_that_is_waited_for_in_place",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/future.c",
        "  if (tried == Py_False && PyErr_CheckSignals",
        "  if (false && tried == Py_False && PyErr_CheckSignals",
        "tests/broker/test_event_loops.py::"
        "test_what_a_signal_handler_raises_gives_the_call_up_that_is_waited_for_in_place",
    ),
    Mutant(
        "interrupted",
        "shmgpu/child/futures.py",
        "isinstance(self._made, _Condition) and self._made.is_left_locked()",
        "False",
        FUTURES + "test_a_future_whose_lock_somebody_left_locked_keeps_no_other_from_its_end",
    ),
    Mutant(
        "calls",
        "shmgpu/codec/pytree.py",
        "        _check_hashes(names)\n",
        "",
        "tests/unit/test_values.py::"
        "test_a_structure_whose_keys_were_made_to_collide_is_refused_before_they_are_compared",
    ),
    Mutant(
        "calls",
        "shmgpu/child/futures.py",
        "                one.rouse()  # an exception",
        "                one.is_done = 0  # an exception",
        "tests/unit/test_future_objects.py::"
        "test_who_was_not_woken_as_an_exception_struck_is_woken_by_the_next_look",
    ),
    Mutant(
        "calls",
        "shmgpu/child/futures.py",
        "            self.ended(self._ticket.call, None, core.error_of(core.ECANCELLED))\n",
        "            pass\n",
        "tests/broker/test_event_loops.py::"
        "test_a_call_that_is_cancelled_as_somebody_awaits_it_wakes_them",
    ),
    Mutant(
        "calls",
        "shmgpu/child/futures.py",
        "        if self._steps is None:\n            self.give_up()\n",
        "",
        "tests/broker/test_event_loops.py::"
        "test_cancelling_a_task_gives_its_call_up_whether_it_has_begun_to_wait",
    ),
    Mutant(
        "calls",
        "shmgpu/child/replies.py",
        "            ready = self.transport.await_replies(0 if rests else self._linger_ns())",
        "            ready = 0 if rests else self.transport.await_replies(self._linger_ns())",
        FUTURES + "test_a_future_that_nobody_waits_for_ends_all_the_same",
    ),
    Mutant(
        "core",
        "csrc/child/port_replies.c",
        "  entry->state = SHMI_ENTRY_QUEUED;\n  return status;",
        "  return status;",
        CORE
        + "test_the_end_of_a_submitted_call_comes_to_who_drains_when_nobody_awaits_it_any_more",
    ),
    Mutant(
        "F37",
        "shmgpu/child/port.py",
        "if ticket.handler is None or self._out.get(ticket.number) is not ticket:",
        "if False:",
        FUTURES + "test_f37_giving_up_a_call_that_has_ended_means_no_other_that_uses_its_memory",
    ),
    Mutant(
        "F30",
        "shmgpu/child/futures.py",
        "made = self.become(_Condition())",
        "made = self.become(threading.Condition())",
        INTERRUPTED + "test_f30_an_exception_from_a_signal_handler_costs_no_other_call_anything",
    ),
    Mutant(
        "interrupted",
        "shmgpu/child/futures.py",
        "        if self.has_told:",
        "        if False:",
        INTERRUPTED + "test_a_signal_handler_may_do_more_than_call",
    ),
    Mutant(
        "F30",
        "shmgpu/attach/membership.py",
        "membership.leaving = NotRunning(runtime.NOT_RUNNING), None",
        "pass",
        BETWEEN + "test_f30_a_process_is_in_its_broker_or_out_of_it_and_never_between",
    ),
    Mutant(
        "F32",
        "csrc/broker/dispatch_children.c",
        "shmi_dispatch_count_dropped(d, slot, child->parked);",
        "shmi_dispatch_count_dropped(d, slot, 0);",
        STORM + "test_f32_a_call_that_waits_for_room_when_its_child_dies_is_counted_as_dropped",
    ),
    Mutant(
        "F32",
        "csrc/broker/dispatch_assign.c",
        "  child->mapped_by = 0;\n",
        "",
        STORM + "test_f32_every_promise_holds_in_a_storm",
    ),
    Mutant(
        "F37",
        "shmgpu/child/port.py",
        "                self._keep(call, int(call.reply.sequence), keep, done)\n",
        "                pass\n",
        HOSTILE
        + "test_f37_a_late_result_lands_in_memory_that_is_still_the_calls_and_is_freed_then",
    ),
    Mutant(
        "F37",
        "csrc/api.c",
        "return held != NULL ? status : shmi_heap_free(ptr);",
        "return shmi_heap_free(ptr);",
        IN_C + "test_f37_a_result_after_the_timeout_lands_in_memory_that_is_still_the_calls",
    ),
    Mutant(
        "trust",
        "csrc/memory/arena.c",
        "if (!dumped) madvise(",
        "if (0) madvise(",
        DUMPS + "test_arenas_and_scratch_regions_are_in_core_dumps_only_if_asked_for",
    ),
    Mutant(
        "trust",
        "shmgpu/attach/endpoint.py",
        "os.O_CLOEXEC | os.O_NOFOLLOW",
        "os.O_CLOEXEC",
        ENDPOINT + "test_a_link_beside_the_socket_is_not_followed",
    ),
    Mutant(
        "trust",
        "shmgpu/attach/spawn.py",
        ".st_uid not in (os.geteuid(), 0)",
        ".st_uid in ()",
        ENDPOINT + "test_a_log_that_is_another_users_is_not_written_to",
    ),
    Mutant(
        "trust",
        "shmgpu/broker/daemon.py",
        "    if group is not None and not trusted:\n        _refuse_pickles()\n",
        "",
        PICKLES + "test_a_broker_for_a_group_refuses_functions_that_unpickle",
    ),
    Mutant(
        "trust",
        "shmgpu/attach/membership.py",
        "if not self.unpickles:",
        "if False:",
        PICKLES + "test_what_another_users_broker_answers_is_not_unpickled",
    ),
    Mutant(
        "trust",
        "shmgpu/attach/membership.py",
        "if row not in self.manifest.pickles:",
        "if False:",
        PICKLES + "test_a_pickle_that_the_brokers_own_function_would_not_make_is_not_read",
    ),
    Mutant(
        "core",
        "csrc/broker/dispatch_assign.c",
        "shmi_helper_span(helper) < SHMI_SPAN_OF_GROWS) {",
        "1) {",
        CORE + "test_a_call_that_thousands_of_grows_overtake_keeps_its_number",
    ),
    Mutant(
        "core",
        "csrc/broker/dispatch_assign.c",
        "if (delivery - helper->lowest >= SHMI_SPAN_OF_CALLS) shmi_dispatch_check_span(d, h);",
        "",
        CORE + "test_a_call_that_thousands_of_calls_overtake_keeps_its_number_too",
    ),
    Mutant(
        "core",
        "csrc/helper/helper_port.c",
        "port.grows_in_a_row < GROWS_IN_A_ROW ||",
        "1 ||",
        CORE + "test_a_call_has_its_turn_among_grows_without_end",
    ),
    Mutant(
        "core",
        "csrc/helper/helper_port.c",
        "    skip_finished();\n",
        "    if (port.begun == 0) skip_finished();\n",
        CORE + "test_the_page_names_a_call_that_has_not_ended_whatever_ended_before_it",
    ),
    Mutant(
        "core",
        "csrc/broker/dispatch_helpers.c",
        "       n < end && n <= helper->deliveries; n++) {",
        "       n <= first && n <= helper->deliveries && n < end; n++) {",
        CORE + "test_a_call_that_hangs_is_seen_whatever_the_page_names_first",
    ),
    Mutant(
        "core",
        "csrc/broker/dispatch_helpers.c",
        "delivery > helper->deliveries",
        "0",
        CORE + "test_a_reply_to_a_number_that_was_not_given_is_nobodys",
    ),
    Mutant(
        "core",
        "csrc/broker/dispatch_helpers.c",
        "    if (reads == READS) {",
        "    if (0) {",
        CORE + "test_a_helper_that_writes_without_end_gets_its_share_of_a_turn",
    ),
    Mutant(
        "core",
        "csrc/broker/dispatch.c",
        "d->holding ? 0 : shmi_schedule_next_timer(d->schedule)",
        "shmi_schedule_next_timer(d->schedule)",
        LAUNCH + "test_a_parent_that_drains_beside_a_batch_that_is_due_sleeps",
    ),
    Mutant(
        "core",
        "csrc/broker/dispatch.c",
        "    shmi_dispatch_look_at_pages(d);\n",
        "",
        CORE + "test_an_answer_that_lies_with_its_helper_is_heard_of_from_its_page",
    ),
    Mutant(
        "core",
        "csrc/broker/dispatch_assign.c",
        "  watch_for_room(d, h, is_full);\n",
        "",
        CORE + "test_what_did_not_fit_a_helpers_pipe_follows_when_it_has_read",
    ),
    Mutant(
        "core",
        "csrc/broker/schedule.c",
        "if (s->holds[i].used && s->holds[i].domain == domain) number = s->holds[i].head;",
        "",
        SCALE + "test_a_call_that_waits_for_company_at_one_that_is_let_go_fails_at_once",
    ),
    Mutant(
        "core",
        "csrc/broker/schedule.c",
        "frame->placement & s->expected;",
        "frame->placement;",
        CORE + "test_a_call_that_a_dead_helper_had_goes_to_another_or_is_answered",
    ),
    Mutant(
        "core",
        "csrc/ipc/scoreboard.h",
        " -\n                   __atomic_load_n(&broker->dropped, __ATOMIC_RELAXED));",
        ");",
        CORE + "test_calls_that_a_child_left_behind_are_not_out_for_ever",
    ),
    Mutant(
        "core",
        "csrc/broker/listener.c",
        "count_waiting() > WAITING",
        "count_waiting() < 0",
        CORE + "test_a_crowd_that_waits_locks_nobody_out_who_only_asks",
    ),
    Mutant(
        "core",
        "csrc/broker/listener.c",
        "if (errno != EAGAIN && errno != EWOULDBLOCK) open_later();",
        "if (errno == 0) open_later();",
        CORE + "test_without_descriptors_a_connection_waits_and_the_parent_sleeps",
    ),
    Mutant(
        "core",
        "shmgpu/helper/parked_results.py",
        "len(mine) >= self._most or ",
        "",
        PARKING + "test_of_one_slot_no_more_are_kept_than_it_may_have_calls_open",
    ),
    Mutant(
        "core",
        "csrc/child/port_replies.c",
        "if (shmi_port.room_waiters > 0) futex_raise(&shmi_port.room_futex);\n}",
        "}",
        CORE + "test_who_waits_for_a_place_serves_a_call_that_asks_for_room_while_others_wait_for_"
        "answers",
    ),
    Mutant(
        "core",
        "csrc/child/port_replies.c",
        "if (shmi_port.room_waiters > 0) futex_raise(&shmi_port.room_futex); "
        "/* one will serve it */",
        "",
        CORE + "test_who_waits_for_a_place_serves_a_call_that_asks_for_room_while_others_wait_for_"
        "answers",
    ),
    Mutant(
        "core",
        "csrc/child/port_replies.c",
        "  } else if (shmi_port.room_waiters > 0) {\n    futex_raise(&shmi_port.room_futex);\n",
        "",
        CORE + "test_who_waits_for_a_place_reads_when_the_one_that_read_leaves",
    ),
    Mutant(
        "core",
        "csrc/child/port_replies.c",
        "return shmi_port.epoch == epoch;",
        "(void)epoch;\n  return 1;",
        CORE + "test_a_thread_that_was_left_behind_changes_nothing_where_the_next_calls_are",
    ),
    Mutant(
        "core",
        "csrc/child/port.c",
        "if (shmi_port.leading) shmi_port.reply_fd = shmi_port.tick_fd = -1;",
        "",
        CORE + "test_a_thread_that_was_left_behind_changes_nothing_where_the_next_calls_are",
    ),
    Mutant(
        "core",
        "csrc/child/port_replies.c",
        "int is_full = shmi_port.free_list != 0 || "
        "shmi_port.outstanding >= shmi_port_window_now();",
        "int is_full = 1;",
        CORE
        + "test_a_call_waits_for_answers_that_others_have_not_taken_yet_where_they_fill_the_table",
    ),
    Mutant(
        "core",
        "csrc/child/port.c",
        "if (shmi_pipe_room(shmi_port.request_fd) > others) send_cancel(sequence);",
        "",
        ORDER + "test_calls_whose_time_is_over_keep_no_place",
    ),
    Mutant(
        "core",
        "csrc/child/port.c",
        "if (shmi_pipe_room(shmi_port.request_fd) > others) send_cancel(sequence);",
        "send_cancel(sequence);",
        WINDOWS + "test_calls_are_given_up_in_time_though_the_pipe_to_the_broker_is_full",
    ),
    Mutant(
        "core",
        "csrc/child/port.c",
        "if (shmi_pipe_room(shmi_port.request_fd) > others) send_cancel(sequence);",
        "if (shmi_pipe_room(shmi_port.request_fd) > 0) send_cancel(sequence);",
        WINDOWS + "test_calls_are_given_up_in_time_though_the_pipe_to_the_broker_is_full",
    ),
    Mutant(
        "core",
        "csrc/child/port.c",
        "if (!shmi_port.leading && status != SHM_ENOT_RUNNING) shmi_port_lead_pass();",
        "",
        CORE + "test_whoever_was_to_read_for_others_and_has_its_answer_has_another_read",
    ),
    Mutant(
        "core",
        "csrc/child/port.c",
        "entry->state == SHMI_ENTRY_GROWING && entry->reply.token == token;",
        "entry->state == SHMI_ENTRY_GROWING;",
        CORE + "test_room_that_is_offered_late_is_not_taken_for_what_is_asked_since",
    ),
    Mutant(
        "core",
        "csrc/ipc/scoreboard.c",
        "while (atomic_load(&readers) != 0) {",
        "while (0) {",
        CORE + "test_a_scoreboard_that_is_destroyed_stays_until_those_who_read_it_have_ended",
    ),
    Mutant(
        "core",
        "csrc/ipc/scoreboard.c",
        "if (atomic_load(&is_shown)) return 1;",
        "if (mapping != NULL) return 1;",
        CORE + "test_a_scoreboard_that_is_destroyed_stays_until_those_who_read_it_have_ended",
    ),
    Mutant(
        "core",
        "csrc/broker/listener.c",
        "else if (sent == SHM_EAGAIN) later(client);",
        "",
        CORE + "test_while_too_many_descriptors_are_on_their_way_who_joins_waits_or_is_told_so",
    ),
    Mutant(
        "core",
        "csrc/ipc/scoreboard.c",
        "static void forget_readers(void) { atomic_store(&readers, 0); }",
        "static void forget_readers(void) {}",
        CORE + "test_a_fork_has_none_of_the_threads_that_read_when_it_was_made",
    ),
    Mutant(
        "calls",
        "shmgpu/child/rooms.py",
        "if getrefcount(array) != _UNHELD:",
        "if False:",
        "tests/broker/test_kinds_of_calls.py::"
        "test_every_kind_of_call_gives_its_own_result_each_time",
    ),
    Mutant(
        "calls",
        "shmgpu/child/rooms.py",
        "if room.promise is not promise or ",
        "if ",
        "tests/broker/test_kinds_of_calls.py::test_a_kind_of_result_follows_another",
    ),
    Mutant(
        "calls",
        "shmgpu/child/arguments.py",
        "if not all(type(name) is str for name in item):",
        "if False:",
        "tests/broker/test_kinds_of_calls.py::"
        "test_values_and_containers_that_look_alike_are_told_apart",
    ),
    Mutant(
        "calls",
        "shmgpu/child/arguments.py",
        "        call.keep = given\n",
        "",
        "tests/broker/test_kept_while_out.py::test_a_list_that_is_emptied_takes_no_array_from_the_helper",
    ),
    Mutant(
        "calls",
        "shmgpu/child/arguments.py",
        "        call.keep = [source.memory for source in sources]\n",
        "",
        "tests/broker/test_kept_while_out.py::test_nor_does_another_thread_while_the_caller_waits",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/submit.c",
        "PyTuple_Pack(4, args, named, function, arrays)",
        "PyTuple_Pack(3, args, named, function)",
        "tests/broker/test_kept_while_out.py::test_a_list_that_is_emptied_takes_no_array_from_the_helper",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/submit.c",
        "    forget(ready);\n",
        "",
        "tests/broker/test_prepared_calls.py::test_a_submission_that_finds_the_window_full_leaves_nothing_to_the_next_call",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/known.c",
        "taken.count == PyTuple_Size(known->outs)",
        "taken.count > 0",
        "tests/unit/test_known_calls.py::test_a_promise_of_more_arrays_than_its_form_has_is_left_to_python",
    ),
    Mutant(
        "calls",
        "shmgpu/codec/pytree.py",
        "if len(set(names)) != len(names):",
        "if False:",
        "tests/unit/test_values.py::test_a_structure_with_a_key_twice_is_refused",
    ),
    Mutant(
        "calls",
        "shmgpu/child/prepared.py",
        "if target.timeout is not None:",
        "if False:",
        "tests/broker/test_prepared_calls.py::test_a_call_that_was_told_to_take_its_time_gives_the_next_none",
    ),
    Mutant(
        "calls",
        "shmgpu/child/futures.py",
        "                self.rouse()  # another may have awaited it before\n",
        "",
        "tests/unit/test_future_objects.py::test_who_awaits_it_second_and_finds_the_end_wakes_the_first",
    ),
    Mutant(
        "calls",
        "shmgpu/child/futures.py",
        " or not reader.looks_at(port)",
        "",
        "tests/unit/test_future_objects.py::test_a_port_that_ends_asks_nothing_of_a_loop_that_looks_at_another",
    ),
    Mutant(
        "calls",
        "shmgpu/child/replies.py",
        "if self._out.get(ticket.number) is ticket:\n                    call.offer",
        "if True:\n                    call.offer",
        "tests/broker/test_kept_while_out.py::test_a_larger_buffer_that_is_offered_too_late_goes_to_no_other_call",
    ),
    Mutant(
        "calls",
        "shmgpu/child/replies.py",
        "call.offer_output(*offers[token])",
        "call.set_output(*offers[token])",
        "tests/broker/test_kept_while_out.py::test_a_larger_buffer_that_is_offered_twice_is_there_all_the_while",
    ),
    Mutant(
        "calls",
        "shmgpu/child/port.py",
        "if is_mine and ticket.call.keeper is None:",
        "if ticket.call.keeper is None:",
        "tests/broker/test_kept_while_out.py::test_who_cancels_what_has_ended_takes_nothing_from_the_next_call",
    ),
    Mutant(
        "calls",
        "shmgpu/child/arguments.py",
        "            and _has_key(key, args, kwargs, flat.arrays)\n",
        "",
        "tests/broker/test_prepared_calls.py::test_a_list_that_changes_as_it_is_looked_at_costs_the_next_call_nothing",
    ),
    Mutant(
        "calls",
        "shmgpu/child/arguments.py",
        "given[len(addresses)] = item.untyped_storage()",
        "pass",
        "tests/broker/test_kept_while_out.py::test_a_tensor_that_gets_other_memory_takes_none_from_the_helper",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/ready.c",
        "if (Py_TYPE(*held) != shmi_quick.tensor) return true;",
        "if (held != NULL) return true;",
        "tests/broker/test_kept_while_out.py::test_a_tensor_that_gets_other_memory_takes_none_from_the_helper",
    ),
    Mutant(
        "calls",
        "shmgpu/child/replies.py",
        "                self._inboxes.append(inbox)\n",
        "",
        "tests/broker/test_futures.py::test_what_broke_off_the_reader_costs_no_later_call_its_callback",
    ),
    Mutant(
        "calls",
        "shmgpu/child/futures.py",
        "task, driven = _current_task(), self._steps",
        "task, driven = None, self._steps",
        "tests/broker/test_event_loops.py::test_tasks_that_drive_one_call_may_all_wait_for_it",
    ),
    Mutant(
        "calls",
        "shmgpu/codec/pytree.py",
        "if type(name) is not str or key != name:",
        "if False:",
        "tests/broker/test_kinds_of_calls.py::test_a_kind_of_result_follows_another",
    ),
    Mutant(
        "calls",
        "shmgpu/child/port.py",
        "call.addresses = addresses  # for another buffer, beside them",
        "pass",
        "tests/broker/test_prepared_calls.py::"
        "test_a_result_that_does_not_fit_whichever_of_the_ready_calls_it_meets_is_given",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/ready.c",
        "if (Py_REFCNT(PyTuple_GetItem(ready->arrays, at)) != 2) return false;",
        "if (at < 0) return false;",
        "tests/broker/test_prepared_calls.py::test_results_that_are_kept_stay_as_they_were",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/call.c",
        "    strike(port, ready, found);",
        "    (void)found;",
        "tests/broker/test_prepared_calls.py::test_ctrl_c_in_one_leaves_the_next_in_order",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/ndarray.c",
        "array->axes != axes || (array->flags & C_CONTIGUOUS) == 0",
        "array->axes != axes",
        "tests/broker/test_prepared_calls.py::test_arrays_from_elsewhere_are_copied_as_ever",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/ready.c",
        "if (!ready->has_places || PyTuple_Size(ready->values) == 0) return true;",
        "if (ready != NULL) return true;",
        "tests/broker/test_prepared_calls.py::test_a_value_of_a_call_that_raised_is_nobody_elses",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/ready.c",
        "return is_plain && Py_TYPE(one) == Py_TYPE(other) && "
        "PyObject_RichCompareBool(one, other, Py_EQ) > 0;",
        "return is_plain;",
        "tests/broker/test_kinds_of_calls.py::"
        "test_values_and_containers_that_look_alike_are_told_apart",
    ),
    Mutant(
        "core",
        "csrc/broker/listener.c",
        "got != 0 && errno == ERANGE && bytes > sizeof few",
        "0",
        "tests/attach/test_other_users.py::"
        "test_a_member_is_let_in_whether_the_group_is_its_first_or_one_of_its_others",
    ),
    Mutant(
        "core",
        "csrc/broker/supervise_roles.c",
        ".kind = has_died ? SHM_EVENT_HELPER_DIED : SHM_EVENT_HELPER_RETIRED,",
        ".kind = SHM_EVENT_HELPER_RETIRED,",
        SCALE + "test_one_that_dies_over_what_it_held_when_it_was_let_go_is_told_of_as_dead",
    ),
    Mutant(
        "core",
        "csrc/broker/dispatch_helpers.c",
        "helper->is_retiring || d->holding || has_work)",
        "helper->is_retiring || d->holding)",
        CORE + "test_an_idle_helper_that_offers_to_end_may_unless_it_has_something_to_do",
    ),
    Mutant(
        "core",
        "csrc/broker/dispatch_helpers.c",
        "if (loads) continue;",
        "(void)loads;",
        CORE + "test_a_call_does_not_hang_while_its_helper_makes_a_session_for_it",
    ),
    Mutant(
        "core",
        "csrc/broker/dispatch_helpers.c",
        "drop_helper(d, h, 0, SHM_HELPER_ABSENT, SHM_EHELPER_GONE);",
        "drop_helper(d, h, 0, SHM_HELPER_ABSENT, SHM_ENO_HELPERS);",
        CORE + "test_a_call_that_is_held_for_a_helper_that_is_let_go_is_answered",
    ),
    Mutant(
        "core",
        "csrc/broker/dispatch_children.c",
        "if (status == SHM_EPLACEMENT) status = why_not_there(d, frame, expected);",
        "(void)why_not_there;",
        CORE + "test_a_call_for_a_helper_that_is_not_there_is_told_why",
    ),
    Mutant(
        "calls",
        "shmgpu/tensors/failures.py",
        "    return core.is_of(error, core.EHELPER_GONE)",
        "    return False",
        SCALE + "test_tensors_go_on_at_the_helpers_that_are_left_and_those_of_others_say_why_they_"
        "are_gone",
    ),
    Mutant(
        "calls",
        "shmgpu/helper/shares.py",
        "if torch is not None and torch.get_num_threads() != self.threads:",
        "if False:",
        SCALE + "test_helpers_share_the_cores_among_as_many_as_there_are",
    ),
    Mutant(
        "calls",
        "csrc/broker/dispatch_helpers.c",
        "  notify_all(d);\n  shmi_dispatch_close",
        "  shmi_dispatch_close",
        SCALE + "test_helpers_share_the_cores_among_as_many_as_there_are",
    ),
    Mutant(
        "calls",
        "shmgpu/tensors/recorder.py",
        "                self._forget_absent()",
        "                pass",
        SCALE + "test_tensors_go_on_at_the_helpers_that_are_left_and_those_of_others_say_why_they_"
        "are_gone",
    ),
    Mutant(
        "core",
        "csrc/child/port_replies.c",
        "if (!shmi_port.leading && shmi_port.drainers > 0) return;",
        "",
        CORE + "test_of_several_that_drain_none_sleeps_on_when_one_has_what_it_wanted",
    ),
    Mutant(
        "core",
        "csrc/child/port_replies.c",
        "return until(deadline_ns) == 0 ? SHM_ETIMEOUT : SHM_ENEEDS_SPACE;",
        "return SHM_ENEEDS_SPACE;",
        CORE + "test_a_call_that_waits_for_others_to_make_room_has_a_deadline",
    ),
    Mutant(
        "core",
        "csrc/broker/listener.c",
        "shmi_process_forget(process); /*",
        "/*",
        CORE
        + "test_a_client_that_has_no_number_in_the_brokers_namespace_is_refused_and_costs_nothing",
    ),
    Mutant(
        "core",
        "csrc/broker/dispatch_assign.c",
        "shmi_pipe_unread(helper->down_fd) == 0) helper->notices = 0;",
        "0) helper->notices = 0;",
        CORE + "test_an_idle_helper_hears_of_every_child_that_leaves_however_many_do",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/automatic.py",
        "carry.name_apart()  # as",
        "# as",
        AUTOMATIC
        + "test_two_functions_of_one_name_are_two_to_every_program_that_shares_the_broker",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/spawn.py",
        "(KeyboardInterrupt, SystemExit, NotInTime)",
        "(KeyboardInterrupt, SystemExit)",
        "tests/attach/test_start.py::"
        "test_a_start_that_takes_too_long_is_given_up_with_the_logs_last_lines",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/automatic.py",
        "                    _asked(self.socket_path, pools[name], count)",
        "                    pass",
        AUTOMATIC + "test_a_program_asks_the_broker_that_it_shares_for_the_helpers_that_it_lacks",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/automatic.py",
        "        _end_idle(self.base)\n",
        "",
        AUTOMATIC + "test_of_many_brokers_without_programs_the_newest_go_on",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/endpoint.py",
        'locked(path, ".starting", 0.0), locked(path, limit=0.0)',
        'locked(path, ".starting"), locked(path)',
        AUTOMATIC + "test_what_ended_brokers_left_is_cleared_away_but_for_the_newest_logs",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/identity.py",
        "if _is_storage(value):",
        "if False:",
        IDENTITY + "test_torch_s_tensors_and_modules_count_by_their_elements",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/sources.py",
        "os.ftruncate(self._descriptor, 0)",
        "pass",
        IDENTITY + "test_a_disk_that_is_full_lets_imports_go_on_and_the_record_vouches_for_nothing",
    ),
    Mutant(
        "core",
        "csrc/broker/dispatch_children.c",
        "      shmi_poll_set_rearm(&d->poll_set, child->request_fd, SHMI_POLL_ARRIVALS, "
        "SHMI_WATCHED_CHILD,\n                          slot);\n",
        "",
        CORE + "test_a_child_that_writes_without_end_gets_its_share_of_a_turn",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/sources.py",
        "if list(_stamp(file)) == list(stamp):",
        "if list(_stamp(file)):",
        IDENTITY + "test_a_record_names_what_was_changed_since",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/sources.py",
        "if not lines or json.loads(lines[0]) != instance:",
        "if not lines:",
        IDENTITY + "test_a_record_that_is_anothers_or_unreadable_counts_as_changed",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/sources.py",
        "is_newer = kept > os.stat(path).st_mtime_ns",
        "is_newer = kept > 0",
        IDENTITY + "test_bytecode_of_the_same_second_is_not_taken_for_the_source_s",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/sources.py",
        "return bool(content) and _content(file) == content",
        "return False",
        AUTOMATIC + "test_a_file_that_is_written_anew_with_the_same_content_has_not_changed",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/sources.py",
        "            self.record.note(spec)\n",
        "",
        AUTOMATIC + "test_what_a_function_imports_only_when_it_runs_counts_too",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/identity.py",
        "                self.value(cell.cell_contents)\n",
        "                cell.cell_contents\n",
        IDENTITY + "test_what_a_function_has_closed_over_counts",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/identity.py",
        "                self.value(function.__globals__[name])\n",
        "",
        IDENTITY + "test_functions_and_classes_that_it_uses_count_as_deeply_as_they_go",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/identity.py",
        "        walk.value(session)\n",
        "",
        AUTOMATIC + "test_a_script_that_was_edited_is_served_by_what_it_says",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/identity.py",
        "if k.startswith(READ_BY_LIBRARIES)",
        "if not k",
        IDENTITY + "test_variables_that_libraries_read_count",
    ),
    Mutant(
        "sharing",
        "shmgpu/attach/automatic.py",
        "return known.key == self.key and not self.reason",
        "return known.key == self.key",
        AUTOMATIC
        + "test_an_edit_of_a_module_that_helpers_loaded_gives_the_next_program_another_broker",
    ),
    Mutant(
        "calls",
        "shmgpu/child/port.py",
        "                if self._is_anything_out():",
        "                if True:",
        KEPT
        + "test_a_call_for_which_there_is_no_memory_and_none_to_come_ends_where_it_is_submitted",
    ),
    Mutant(
        "calls",
        "shmgpu/helper/arena_views.py",
        "memory = self.memory if writeable else self.read_only",
        "memory = self.memory",
        MUTATES + "test_writing_to_an_argument_is_an_error_and_changes_nothing",
    ),
    Mutant(
        "calls",
        "shmgpu/helper/batch_executor.py",
        "joined.flags.writeable = target.mutates",
        "joined.flags.writeable = True",
        MUTATES + "test_what_is_an_error_in_a_batch_is_one_alone",
    ),
    Mutant(
        "calls",
        "shmgpu/child/arguments.py",
        "is_inside = is_inside and not target.mutates",
        "is_inside = bool(is_inside)",
        MUTATES + "test_the_elements_of_a_tensor_stay_as_they_are",
    ),
    Mutant(
        "calls",
        "shmgpu/child/arguments.py",
        "elif is_inside and target.mutates and not source.memory.flags.writeable:",
        "elif False:",
        MUTATES + "test_what_is_read_only_to_its_owner_is_not_mutated",
    ),
    Mutant(
        "calls",
        "shmgpu/child/arguments.py",
        "        kept += sum(one.kept_bytes for turns in ready for one in tuple(turns))\n",
        "",
        KEPT + "test_calls_that_repeat_keep_no_more_than_their_share",
    ),
    Mutant(
        "calls",
        "shmgpu/child/arguments.py",
        "        idle.sort(key=lambda one: one[0].used)\n",
        "        idle.sort(key=lambda one: -one[0].used)\n",
        KEPT + "test_what_was_not_used_for_longest_goes_first",
    ),
    Mutant(
        "calls",
        "shmgpu/child/arguments.py",
        "        if kept <= self._may_keep:\n            return\n",
        "        return\n",
        KEPT + "test_copies_of_many_shapes_keep_no_more_than_their_share",
    ),
    Mutant(
        "calls",
        "shmgpu/child/memory.py",
        "return time.perf_counter() >= ended + 9 * took or not self.awaits()",
        "return True",
        KEPT + "test_refused_submits_do_not_search_for_garbage_each_time",
    ),
    Mutant(
        "sentences",
        "shmgpu/attach/membership.py",
        "    config.warn_unknown()\n",
        "",
        SENTENCES + "test_a_misspelt_variable_is_warned_of_once_whoever_starts_the_broker",
    ),
    Mutant(
        "sentences",
        "shmgpu/common/config.py",
        "if name in _warned_of:",
        "if False:",
        "tests/unit/test_config.py::test_a_variable_that_means_nothing_is_warned_of_once",
    ),
    Mutant(
        "sentences",
        "shmgpu/common/logs.py",
        "            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]\n",
        "            pass\n",
        SENTENCES + "test_what_a_helper_prints_is_at_once_in_the_log_that_the_command_line_names",
    ),
    Mutant(
        "sentences",
        "shmgpu/attach/membership.py",
        "if session is not None and self.manifest.has_other_session(session):",
        "if False:",
        AUTOMATIC
        + "test_so_does_a_session_function_that_is_not_what_the_broker_made_its_sessions_with",
    ),
    Mutant(
        "sentences",
        "shmgpu/attach/membership.py",
        "if callable(session) and not self.manifest.makes(session):",
        "if False:",
        AUTOMATIC
        + "test_so_does_a_session_function_that_is_not_what_the_broker_made_its_sessions_with",
    ),
    Mutant(
        "sentences",
        "shmgpu/attach/membership.py",
        "            carry.obstacle if known.key else None,\n",
        "            None,\n",
        SENTENCES + "test_a_function_that_could_not_be_carried_says_what_it_refers_to",
    ),
    Mutant(
        "sentences",
        "shmgpu/tensors/interop.py",
        "    if name in INDEXING:\n",
        "    if False:\n",
        "tests/tensors/test_interop.py::"
        "test_tensors_of_pytorch_are_indexed_and_sized_by_those_of_shmgpu",
    ),
    Mutant(
        "sentences",
        "shmgpu/broker/role_host.py",
        "said = error.sentence if isinstance(error, RemoteError) else str(error)",
        "said = str(error)",
        LAUNCH + "test_a_helpers_traceback_is_told_once_where_a_child_fails_by_it",
    ),
    Mutant(
        "F39",
        "csrc/ipc/gang.c",
        "    abort_quietly(ticket, helper, SHM_GANG_MEMBER_DIED);\n",
        "",
        GANGS + "test_f39_nothing_stands_while_one_member_has_not_arrived",
    ),
    Mutant(
        "F38",
        "csrc/broker/dispatch_helpers.c",
        "(r->gang_has_run && !may_repeat)",
        "1",
        GANGS + "test_f38_a_call_that_no_member_had_begun_runs_with_the_replacement",
    ),
    Mutant(
        "F38",
        "csrc/broker/dispatch_helpers.c",
        "int may_repeat = (r->function->flags & SHM_FUNCTION_IDEMPOTENT) != 0 && r->attempts < 2;",
        "int may_repeat = r->attempts < 3;",
        GANGS + "test_f38_an_idempotent_call_is_made_once_more_and_never_a_third_time",
    ),
    Mutant(
        "F39",
        "csrc/ipc/gang.c",
        "int is_last = arrived == size;",
        "int is_last = arrived + 1 >= size;",
        GANGS + "test_f39_nothing_stands_while_one_member_has_not_arrived",
    ),
    Mutant(
        "F39",
        "csrc/broker/dispatch_helpers.c",
        "if (has_committed) r->frame.flags |= SHMI_FRAME_COMMITTED;",
        "",
        GANGS + "test_f39_a_call_that_stands_is_said_to_stand_whoever_dies_after_it",
    ),
    Mutant(
        "gangs",
        "csrc/broker/dispatch_helpers.c",
        "(r->gang_status != SHM_EABORTED || status == SHM_EABORTED)",
        "1",
        CORE + "test_of_a_gang_that_fails_the_one_is_named_whose_own_failure_it_was",
    ),
    Mutant(
        "F40",
        "csrc/broker/dispatch_helpers.c",
        "int waits = r->members != 0 && shmi_gang_waits(h);",
        "int waits = 0;",
        GANGS + "test_f40_of_a_call_that_hangs_the_stopped_member_is_ended_and_no_other",
    ),
    Mutant(
        "F40",
        "csrc/helper/collective_exchange.c",
        "if (slot < 0) return mismatch(run, rank, NULL, bytes);",
        "if (slot < 0) slot = 0;",
        GANGS + "test_f40_members_that_disagree_or_wait_for_each_other_are_told_and_do_not_hang",
    ),
    Mutant(
        "F42",
        "csrc/broker/schedule.c",
        "uint32_t number = shmi_gang_take_out(s, helper);",
        "uint32_t number = SHMI_NONE;",
        GANGS + "test_f42_a_pool_is_scaled_while_its_helpers_run_a_call",
    ),
    Mutant(
        "F43",
        "csrc/helper/helper_port.c",
        "head.mask != frame->members ||",
        "",
        IN_C + "test_f43_a_gang_that_names_nobody_or_whose_table_is_wrong_is_refused",
    ),
    Mutant(
        "F43",
        "csrc/broker/schedule_gangs.c",
        "  shmi_queue_use_turn(s, shmi_gang_domain(s), r->frame.priority, r->frame.slot);\n",
        "",
        IN_C + "test_f43_a_flood_of_gangs_lets_others_calls_and_gangs_pass_in_their_turns",
    ),
    Mutant(
        "F44",
        "csrc/broker/dispatch_helpers.c",
        "if (!shmi_dispatch_must_catch_up(d, h)) shmi_dispatch_made_up(d, h);",
        "shmi_dispatch_made_up(d, h);",
        BROADCASTS + "test_f44_a_helper_that_replaces_one_has_the_last_broadcasts_before_it_serves",
    ),
    Mutant(
        "F44",
        "csrc/broker/dispatch_broadcasts.c",
        "    if (has_run) condemn(d, h);\n    else shmi_dispatch_spare(d, h);\n",
        "    (void)has_run;\n    shmi_dispatch_spare(d, h);\n",
        BROADCASTS + "test_f44_the_first_helper_raises_and_nothing_has_changed",
    ),
    Mutant(
        "F44",
        "csrc/broker/dispatch_helpers.c",
        " ||\n                   shmi_dispatch_is_broadcast(&r->frame);",
        ";",
        BROADCASTS + "test_f44_the_first_helper_dies_and_another_is_the_first",
    ),
    Mutant(
        "F44",
        "csrc/broker/supervise_roles.c",
        "      has_served ? 0 : in_a_row(",
        "      0 * has_served + in_a_row(",
        BROADCASTS + "test_f44_failed_broadcasts_end_no_launch",
    ),
    Mutant(
        "F45",
        "csrc/broker/dispatch_children.c",
        "  while ((number = shmi_dispatch_drop_broadcast(d, slot, 0)) != SHMI_NONE) {",
        "  while ((number = SHMI_NONE) != SHMI_NONE) {",
        BROADCASTS + "test_f45_what_waits_for_its_turn_when_its_sender_dies_is_dropped",
    ),
    Mutant(
        "gangs",
        "csrc/helper/rendezvous.c",
        "me.slots[slot].readers = readers & ~(UINT64_C(1) << me.helper);",
        "me.slots[slot].readers = 0;",
        CORE + "test_and_in_many_small_pieces_through_small_regions",
    ),
    Mutant(
        "gangs",
        "csrc/helper/rendezvous.c",
        "if ((uint32_t)(me.slots[i].until >> 32) == ticket) me.slots[i].readers = 0;",
        "me.slots[i].readers = 0;",
        CORE + "test_and_of_several_children_at_once",
    ),
    Mutant(
        "gangs",
        "csrc/ipc/gang.c",
        "  shmi_gang_ring(all); /* also whoever waits until it has read */\n",
        "",
        CORE + "test_the_death_of_a_member_aborts_what_is_undecided_and_nobody_waits_for_it",
    ),
    Mutant(
        "gangs",
        "csrc/ipc/gang.c",
        "  move_past(helper, last_ticket);\n  for",
        "  for",
        CORE + "test_the_death_of_a_member_aborts_what_is_undecided_and_nobody_waits_for_it",
    ),
    Mutant(
        "gangs",
        "csrc/ipc/gang.c",
        "    if (ticket - last_of[helper] > STALE",
        "    if (0 && ticket - last_of[helper] > STALE",
        CORE + "test_a_helper_that_was_idle_for_long_is_not_taken_to_be_ahead",
    ),
    Mutant(
        "gangs",
        "shmgpu/engine/compile.py",
        "commits = options.commits and bool(program.donated)",
        "commits = False",
        MESHES + "test_a_death_in_a_step_of_data_parallel_training_costs_that_step_and_no_bit",
    ),
    Mutant(
        "gangs",
        "shmgpu/parallel/placer.py",
        "for life in message.lives:  # they hold it",
        "for life in message.lives[:0]:  # they hold it",
        MESHES + "test_a_step_that_writes_over_nothing_is_done_again_and_leaves_nothing_of_before",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/tensor.c",
        "shmi_is(PyObject_GetAttr(tensor, shmi_quick.requires_grad), Py_False) &&",
        "",
        "tests/unit/test_signatures.py::test_a_tensor_fits_where_its_memory_is_as_that_of_another",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/tensor.c",
        "shmi_is(PyObject_CallMethodObjArgs(tensor, shmi_quick.is_neg, NULL), Py_False) &&",
        "",
        "tests/unit/test_signatures.py::test_a_tensor_fits_where_its_memory_is_as_that_of_another",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/tensor.c",
        "is->strides[axis] != stride) return false;",
        "is->strides[axis] < 0) return false;",
        "tests/unit/test_signatures.py::test_a_tensor_fits_where_its_memory_is_as_that_of_another",
    ),
    Mutant(
        "calls",
        "shmgpu/child/futures.py",
        "            while due:  # something broke this off",
        "            while False:  # something broke this off",
        "tests/unit/test_future_objects.py::"
        "test_those_whose_ends_a_loop_reads_go_on_at_once_and_after_an_exception_in_its_next_turn",
    ),
    Mutant(
        "calls",
        "shmgpu/child/futures.py",
        "        if read_alone(self.waiting, core.GLANCE):\n            return\n",
        "",
        "tests/broker/test_event_loops.py::"
        "test_who_alone_awaits_goes_on_in_the_callback_that_reads_the_answer",
    ),
    Mutant(
        "calls",
        "shmgpu/child/futures.py",
        "            self.reader.due.append(woken)",
        "            woken.set_result(None)",
        "tests/broker/test_event_loops.py::"
        "test_those_who_await_go_on_in_the_callback_that_reads_their_answers",
    ),
    Mutant(
        "core",
        "csrc/child/port_replies.c",
        "  if (beside_fd < 0) return shmi_port_wait",
        "  if (1) return shmi_port_wait",
        CORE + "test_a_wait_beside_a_descriptor_ends_where_that_is_readable_and_no_reply_is",
    ),
    Mutant(
        "core",
        "csrc/child/port_replies.c",
        "    } else if (beside_fd >= 0) {\n",
        "    } else if (0) {\n",
        CORE + "test_nobody_who_watches_a_descriptor_follows_another_thread",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/wake.c",
        "!is_empty(loop, shmi_quick.loop_ready) ||",
        "",
        "tests/broker/test_event_loops.py::test_where_there_is_something_else_the_loop_has_its_turn",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/wake.c",
        "!is_empty(future->reader, shmi_quick.waiting) ||",
        "",
        "tests/broker/test_event_loops.py::test_those_who_await_at_once_all_wait_in_the_loop",
    ),
    Mutant(
        "calls",
        "csrc/python/quick/wake.c",
        "return ++looks % TURNS == 0 && poll(&one, 1, 0) != 0;",
        "return false;",
        "tests/broker/test_event_loops.py::"
        "test_answers_that_are_always_there_do_not_keep_what_else_comes_from_its_turn",
    ),
    Mutant(
        "interrupted",
        "shmgpu/child/replies.py",
        " or (self._queue and done == 0)",
        "",
        "tests/broker/test_event_loops.py::"
        "test_a_call_that_was_left_in_the_queue_is_sent_by_the_loops_next_look",
    ),
    Mutant(
        "calls",
        "shmgpu/codec/pytree.py",
        "items = tuple(node)  # another",
        "items = node  # another",
        "tests/unit/test_values.py::"
        "test_a_container_that_changes_while_it_is_taken_apart_is_as_it_was",
    ),
    Mutant(
        "core",
        "csrc/child/port_replies.c",
        "    if (got != 0) return got;\n  }",
        "    return got;\n  }",
        "tests/broker/test_event_loops.py::"
        "test_a_loop_that_made_the_pipe_of_replies_non_blocking_does_not_end_calls",
    ),
    # What somebody holds of a recording keeps its history, and what nobody holds is given away.
    Mutant(
        "recordings",
        "csrc/python/graph/draft.c",
        "node->visited != needed && Py_REFCNT((PyObject *)node) <= node->uses + ours",
        "node->visited != needed && Py_REFCNT((PyObject *)node) <= node->uses + ours + 99",
        "tests/tensors/test_grad_mode.py::"
        "test_what_a_thread_holds_before_it_has_recorded_anything_is_there_when_it_goes_on",
    ),
    Mutant(
        "recordings",
        "csrc/python/graph/draft.c",
        "if (is_step(one, mark) && one->visited != valued) one->visited = needed;",
        "(void)one;",
        "tests/tensors/test_hooks.py::test_a_hook_reads_a_gradient_while_others_are_on_their_way",
    ),
    Mutant(
        "recordings",
        "csrc/python/graph/draft.c",
        "if (Py_REFCNT((PyObject *)node) > node->at + 1) continue;",
        "continue;",
        "tests/tensors/test_donations.py::"
        "test_what_an_operation_replaced_in_place_is_nobody_s_and_there_again_if_it_fails",
    ),
    Mutant(
        "recordings",
        "shmgpu/tensors/recorder.py",
        "shown = [node for node in self.taken() if node.owners]",
        "shown = self.taken()",
        "tests/tensors/test_donations.py::"
        "test_a_loop_on_two_helpers_gives_each_step_all_that_the_next_does_not_need",
    ),
    Mutant(
        "recordings",
        "shmgpu/tensors/recorder.py",
        "message.cleared = [(node, node.inputs) for node in order]",
        "message.cleared = [(node, node.inputs) for node in done]",
        "tests/tensors/test_failures.py::"
        "test_gradients_that_were_taken_before_a_failure_is_heard_of_are_computed_after_it",
    ),
    Mutant(
        "recordings",
        "shmgpu/parallel/placer.py",
        "message.cleared = [(node, node.inputs) for node in order]",
        "message.cleared = [(node, node.inputs) for node in done]",
        "tests/meshes/test_tensors.py::"
        "test_gradients_that_were_taken_before_a_failure_is_heard_of_are_computed_after_it",
    ),
    Mutant(
        "recordings",
        "shmgpu/tensors/current.py",
        """        found: Recorder | None = means.extra.get("recorder")
        if found is not None:
            return found
        if config""",
        "        if config",
        "tests/tensors/test_first_tensor.py::"
        "test_threads_that_make_the_first_at_once_have_one_recorder",
    ),
    Mutant(
        "recordings",
        "shmgpu/tensors/sharing.py",
        "    with once.lock:\n        shared = of._shared\n",
        "    if of is not None:\n        shared = of._shared\n",
        "tests/tensors/test_once.py::test_the_first_views_of_a_tensor_share_its_elements",
    ),
]

# Protections that belong to no row of faults, by theme: their tests are called as they please.
THEMES: dict[str, str] = {
    "sharing": "brokers that start by themselves: who shares which, and what they leave",
    "calls": "what a call may write to, and what an idle one keeps of the arena",
    "interrupted": "what an exception breaks off is tidied up",
    "core": "every call ends, whatever overtakes it, and nobody wakes for nothing",
    "sentences": "what a newcomer is told, once and at the right moment",
    "recordings": "what somebody holds of a recording, or threads take up at once, is there",
    "gangs": "members of one call read what was posted for them, and woken; none leaves a trace",
    "trust": "what a neighbour can and cannot do (see the page on trust)",
}

# Rows that nothing in the source switches on: each with the reason.
NO_SWITCH: dict[str, str] = {
    "F41": "what protects the callers of all calls (F37, F02, F03) protects those of gangs",
    "F22": "nothing that the broker makes ever has a name: what no process holds is gone",
}

# Rows whose test and switch are still to be entered above.
PENDING: list[str] = []
