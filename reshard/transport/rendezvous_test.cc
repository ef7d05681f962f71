// SPDX-License-Identifier: Apache-2.0
// Protects: the processes of a job form one group, and all others get an error that says why not.
#include "reshard/transport/rendezvous.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "reshard/transport/tcp/rendezvous_address.h"
#include "reshard/transport/tcp/socket.h"
#include "reshard/transport/testing/rank_processes_testutil.h"

namespace reshard {
namespace {

RendezvousOptions place(const std::string& url, int rank, int size) {
  RendezvousOptions join;
  join.url = url;
  join.rank = Rank{rank};
  join.size = size;
  join.deadline = patient();
  return join;
}

using Joined = Result<std::unique_ptr<ControlPlane>>;

std::future<Joined> join_soon(const RendezvousOptions& as) {
  return std::async(std::launch::async, [as] { return join(as); });
}

/// Joins all at the same time; returns the outcomes by position.
std::vector<Joined> join_all(const std::vector<RendezvousOptions>& all) {
  std::vector<std::future<Joined>> soon;
  for (const RendezvousOptions& as : all) soon.push_back(join_soon(as));
  std::vector<Joined> out;
  for (auto& one : soon) out.push_back(one.get());
  return out;
}

/// A port below those that the system gives to whoever asks for any, so that no other test has it.
int free_port() { return 20'000 + static_cast<int>(std::random_device()() % 12'768); }

TEST(Rendezvous, ranks_meet_in_a_folder_and_leave_nothing_there) {
  const RendezvousFolder folder;
  auto all =
      join_all({place(folder.url(), 0, 3), place(folder.url(), 1, 3), place(folder.url(), 2, 3)});
  for (const auto& one : all) EXPECT_TRUE(one) << outcome(one);
  EXPECT_EQ(folder.files(), std::vector<std::string>{});
}

TEST(Rendezvous, what_rank_0_writes_is_its_owners_only) {
  const RendezvousFolder folder;
  auto late = join_soon(place(folder.url(), 0, 2));
  const std::string path = folder.path() + "/reshard-reshard";
  struct stat about{};
  while (::stat(path.c_str(), &about) != 0) std::this_thread::yield();
  EXPECT_EQ(about.st_mode & 0777, 0600U);
  auto other = join(place(folder.url(), 1, 2));
  EXPECT_TRUE(other) << outcome(other);
  EXPECT_TRUE(late.get());
}

TEST(Rendezvous, ranks_meet_over_tcp_with_a_secret) {
  for (const std::string host : {"127.0.0.1", "localhost"}) {
    const std::string url = "tcp://" + host + ":" + std::to_string(free_port());
    std::vector<RendezvousOptions> all;
    for (const int rank : {2, 1, 0}) all.push_back(place(url, rank, 3));
    for (RendezvousOptions& as : all) as.secret = *Secret::from_text("sixteen characters");
    auto joined = join_all(all);
    for (const auto& one : joined) EXPECT_TRUE(one) << outcome(one);
  }
}

TEST(Rendezvous, rank_0_may_bring_a_listener_whose_port_was_told_before) {
  const auto listener = tcp::listen_at("127.0.0.1", 0);
  ASSERT_TRUE(listener);
  const std::string url = "tcp://127.0.0.1:" + std::to_string(listener->port);
  for (const std::string job : {"first", "second"}) {  // it stays the caller's
    std::vector<RendezvousOptions> all;
    for (const int rank : {2, 1, 0}) all.push_back(place(url, rank, 3));
    for (RendezvousOptions& as : all) as.secret = *Secret::from_text("sixteen characters");
    for (RendezvousOptions& as : all) as.job = job;
    all.back().listener = listener->socket.get();
    auto joined = join_all(all);
    for (const auto& one : joined) EXPECT_TRUE(one) << outcome(one);
  }
}

TEST(Rendezvous, a_listener_that_cannot_serve_is_refused) {
  const auto listener = tcp::listen_at("127.0.0.1", 0);
  const auto pair = tcp::socket_pair();
  ASSERT_TRUE(listener && pair);
  RendezvousOptions as = place("tcp://127.0.0.1:1", 0, 2);
  as.secret = *Secret::from_text("sixteen characters");
  for (const int fd : {pair->first.get(), 1 << 20}) {
    as.listener = fd;
    expect_error(join(as), Code::invalid_argument,
                 {"descriptor " + std::to_string(fd) + " is not a TCP socket that listens"});
  }
  as.listener = listener->socket.get();
  as.rank = Rank(1);
  expect_error(join(as), Code::invalid_argument, {"only rank 0 of a tcp:// rendezvous"});
  const RendezvousFolder folder;
  as = place(folder.url(), 0, 2);
  as.listener = listener->socket.get();
  expect_error(join(as), Code::invalid_argument, {"only rank 0 of a tcp:// rendezvous"});
}

TEST(Rendezvous, groups_of_other_names_do_not_mix) {
  const RendezvousFolder folder;
  std::vector<RendezvousOptions> all;
  for (const std::string job : {"a", "b"}) {
    for (int rank = 0; rank < 2; ++rank) {
      all.push_back(place(folder.url(), rank, 2));
      all.back().job = job;
      all.back().agreement = job;
    }
  }
  for (const auto& one : join_all(all)) EXPECT_TRUE(one) << outcome(one);
}

TEST(Rendezvous, at_a_tcp_place_that_another_group_holds_a_rank_waits) {
  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  const Secret secret = Secret::random();
  const auto as = [&](const std::string& job, int rank) {
    RendezvousOptions out = place(url, rank, 2);
    out.job = job;
    out.secret = secret;
    return out;
  };
  auto first = join_soon(as("first", 0));
  RendezvousOptions early = as("second", 1);
  early.deadline = Deadline::after(std::chrono::milliseconds(200));
  expect_error(join(early), Code::deadline, {"rank 0 did not arrive"});
  auto second = join_all({as("second", 0), as("second", 1), as("first", 1)});
  for (const auto& one : second) EXPECT_TRUE(one) << outcome(one);
  EXPECT_TRUE(first.get());
}

TEST(Rendezvous, a_wrong_secret_is_told_to_its_owner_and_hurts_nobody) {
  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  std::vector<RendezvousOptions> all{place(url, 0, 2), place(url, 1, 2), place(url, 1, 2)};
  for (RendezvousOptions& as : all) as.secret = *Secret::from_text("the right secret words");
  all[1].secret = *Secret::from_text("the wrong secret words");
  auto zero = join_soon(all[0]);
  const auto wrong = join(all[1]);
  expect_error(wrong, Code::aborted, {"secret"});
  EXPECT_EQ(wrong.error().message.find("words"), std::string::npos);
  auto right = join(all[2]);
  EXPECT_TRUE(right) << outcome(right);
  EXPECT_TRUE(zero.get());
}

TEST(Rendezvous, in_a_folder_too_a_secret_may_be_brought_and_then_is_needed) {
  const RendezvousFolder folder;
  std::vector<RendezvousOptions> all{place(folder.url(), 0, 2), place(folder.url(), 1, 2)};
  all[0].secret = Secret::random();
  auto zero = join_soon(all[0]);
  expect_error(join(all[1]), Code::aborted, {"secret"});
  all[1].secret = Secret::random();
  expect_error(join(all[1]), Code::aborted, {"secret"});
  all[1].secret = all[0].secret;
  auto right = join(all[1]);
  EXPECT_TRUE(right) << outcome(right);
  EXPECT_TRUE(zero.get());
}

TEST(Rendezvous, differing_agreements_are_named_on_every_rank) {
  const RendezvousFolder folder;
  std::vector<RendezvousOptions> all;
  for (int rank = 0; rank < 3; ++rank) {
    all.push_back(place(folder.url(), rank, 3));
    all.back().agreement = rank == 2 ? "plan 17" : "plan 16";
  }
  for (const auto& one : join_all(all))
    expect_error(one, Code::invalid_argument, {"rank 2", "\"plan 17\"", "\"plan 16\""});
  // Long agreements are compared, but not printed.
  for (RendezvousOptions& as : all)
    as.agreement = std::string(100'000, as.rank == Rank{1} ? 'x' : 'y');
  for (const auto& one : join_all(all)) {
    expect_error(one, Code::invalid_argument, {"rank 1", "100000 bytes with digest"});
    EXPECT_LT(one.error().message.size(), 300U);
  }
  for (RendezvousOptions& as : all) as.agreement = std::string(100'000, 'z');
  for (const auto& one : join_all(all)) EXPECT_TRUE(one) << outcome(one);
}

TEST(Rendezvous, a_differing_setting_is_told_by_name_with_both_values) {
  const RendezvousFolder folder;
  std::vector<RendezvousOptions> all;
  for (int rank = 0; rank < 4; ++rank) {
    all.push_back(place(folder.url(), rank, 4));
    all.back().settings = {{"--seed", "7"}, {"--repeat", rank == 2 ? "5" : "2"}};
    all.back().agreement = rank == 2 ? "another" : "one";
  }
  auto outcomes = join_all(all);
  for (const std::size_t r : {0U, 1U, 3U})
    expect_error(outcomes[r], Code::invalid_argument, {"rank 2 has --repeat 5, this program 2"});
  expect_error(outcomes[2], Code::invalid_argument, {"rank 0 has --repeat 2, this program 5"});
  // A differing setting is reported before differing sizes, even if a rank does not know the
  // setting.
  all.resize(2);
  all[0].size = 2;
  all[1].settings.erase(all[1].settings.begin());
  outcomes = join_all(all);
  expect_error(outcomes[0], Code::invalid_argument, {"rank 1 does not know --seed"});
  expect_error(outcomes[1], Code::invalid_argument, {"rank 0 has --seed 7", "does not know"});
  // Long values are compared in full, but not printed.
  for (RendezvousOptions& as : all) {
    as.size = 2;
    as.settings = {{"--ignore", std::string(100'000, as.rank == Rank{1} ? 'x' : 'y')}};
  }
  for (const auto& one : join_all(all)) {
    expect_error(one, Code::invalid_argument, {"--ignore of 100000 bytes with digest"});
    EXPECT_LT(one.error().message.size(), 300U);
  }
  for (RendezvousOptions& as : all) as.settings = {{"--ignore", std::string(100'000, 'z')}};
  for (const auto& one : join_all(all)) EXPECT_TRUE(one) << outcome(one);
}

TEST(Rendezvous, differing_sizes_are_named_on_every_rank) {
  const RendezvousFolder folder;
  const std::vector<RendezvousOptions> all{place(folder.url(), 0, 4), place(folder.url(), 1, 2)};
  for (const auto& one : join_all(all))
    expect_error(one, Code::invalid_argument, {"rank 1", "group of 2", "4"});
}

TEST(Rendezvous, a_rank_that_is_taken_is_refused_to_the_second) {
  const RendezvousFolder folder;
  auto zero = join_soon(place(folder.url(), 0, 3));
  auto one = join_soon(place(folder.url(), 1, 3)), again = join_soon(place(folder.url(), 1, 3));
  const auto is_ready = [](auto& joined) {
    return joined.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  // Rank 2 joins after the refusal, so that the group is not complete and rank 0 still refuses.
  while (!is_ready(one) && !is_ready(again)) std::this_thread::yield();
  if (is_ready(one)) std::swap(one, again);
  expect_error(again.get(), Code::invalid_argument, {"rank 1 is taken"});
  EXPECT_TRUE(join(place(folder.url(), 2, 3)));
  EXPECT_TRUE(one.get() && zero.get());
}

TEST(Rendezvous, rank_0_is_taken_while_another_gathers_there) {
  const RendezvousFolder folder;
  const std::string tcp = "tcp://127.0.0.1:" + std::to_string(free_port());
  for (const std::string& url : {folder.url(), tcp}) {
    std::vector<RendezvousOptions> all;
    for (int rank = 0; rank < 3; ++rank) {
      all.push_back(place(url, rank, 3));
      all.back().secret = *Secret::from_text("sixteen characters");
    }
    auto first = join_soon(all[0]);
    // The second rank 0 starts once the first is listening, that is, once it names missing ranks.
    RendezvousOptions probe = all[1];
    for (bool there = false; !there;) {
      probe.deadline = Deadline::after(std::chrono::milliseconds(50));
      const auto left = join(probe);
      there = !left && left.error().message.find("rank 2 did not arrive") != std::string::npos;
    }
    expect_error(join(all[0]), Code::invalid_argument, {"rank 0 is taken"});
    for (const auto& one : join_all({all[1], all[2]})) EXPECT_TRUE(one) << outcome(one);
    EXPECT_TRUE(first.get());
  }
}

TEST(Rendezvous, the_ranks_that_do_not_come_are_named_at_the_deadline) {
  const RendezvousFolder folder;
  std::vector<RendezvousOptions> all{place(folder.url(), 0, 5), place(folder.url(), 3, 5)};
  auto zero = join_soon(all[0]);
  while (folder.files() != std::vector<std::string>{"reshard-reshard"}) std::this_thread::yield();
  all[1].deadline = Deadline::after(std::chrono::seconds(1));
  expect_error(join(all[1]), Code::deadline, {"ranks 1, 2, 4 did not arrive"});
  // A process that gave up may join again.
  std::vector<RendezvousOptions> rest;
  for (const int rank : {1, 2, 3, 4}) rest.push_back(place(folder.url(), rank, 5));
  for (const auto& one : join_all(rest)) EXPECT_TRUE(one) << outcome(one);
  EXPECT_TRUE(zero.get());

  all[0].deadline = brief();
  expect_error(join(all[0]), Code::deadline, {"ranks 1, 2, 3, 4 did not arrive"});
  all[1].deadline = brief();
  expect_error(join(all[1]), Code::deadline, {"rank 0 did not arrive"});
  EXPECT_EQ(folder.files(), std::vector<std::string>{});
}

/// Creates the file of a rank 0 that was killed while ranks were missing.
void die_gathering(const RendezvousFolder& folder, const Secret& secret) {
  const auto body = [&](Rank) {
    RendezvousOptions as = place(folder.url(), 0, 2);
    as.secret = secret;
    auto never = join_soon(as);
    while (folder.files() != std::vector<std::string>{"reshard-reshard"}) std::this_thread::yield();
    ::raise(SIGKILL);
  };
  EXPECT_EQ(outcome(run_processes(1, body, {.doomed = {0}})), "");
  ASSERT_EQ(folder.files(), std::vector<std::string>{"reshard-reshard"});
}

TEST(Rendezvous, the_file_of_a_dead_job_does_not_stop_a_new_one) {
  // With the secret of the dead job, with that of the new one, and without.
  const Secret none, text = *Secret::from_text("sixteen characters");
  for (const auto& [dead, living] : {std::pair(none, none), {none, text}, {text, none}}) {
    const RendezvousFolder folder;
    die_gathering(folder, dead);
    std::vector<RendezvousOptions> all{place(folder.url(), 0, 2), place(folder.url(), 1, 2)};
    for (RendezvousOptions& as : all) as.secret = living;
    // The second process reads the stale file before a living rank 0 replaces it.
    RendezvousOptions early = all[1];
    early.deadline = brief();
    expect_error(join(early), Code::deadline, {"rank 0 did not arrive"});
    auto one = join_soon(all[1]);
    auto zero = join(all[0]);
    EXPECT_TRUE(zero) << outcome(zero);
    auto other = one.get();
    EXPECT_TRUE(other) << outcome(other);
  }
}

TEST(Rendezvous, what_a_dead_job_left_can_be_removed_and_nothing_else) {
  const RendezvousFolder folder;
  die_gathering(folder, Secret());
  remove_dead_rendezvous(place(folder.url(), 0, 2));
  EXPECT_EQ(folder.files(), std::vector<std::string>{});
  auto zero = join_soon(place(folder.url(), 0, 2));
  while (folder.files() != std::vector<std::string>{"reshard-reshard"}) std::this_thread::yield();
  remove_dead_rendezvous(place(folder.url(), 0, 2));
  EXPECT_EQ(folder.files(), std::vector<std::string>{"reshard-reshard"});
  EXPECT_TRUE(join(place(folder.url(), 1, 2)));
  EXPECT_TRUE(zero.get());
}

TEST(Rendezvous, who_gives_up_says_so_and_leaves_nothing_behind) {
  const RendezvousFolder folder;
  const std::string tcp = "tcp://127.0.0.1:" + std::to_string(free_port());
  for (const std::string& url : {folder.url(), tcp}) {
    for (const int rank : {0, 1}) {
      RendezvousOptions as = place(url, rank, 2);
      as.secret = *Secret::from_text("sixteen characters");
      int asked = 0;
      as.gives_up = [&] { return ++asked > 3 ? "enough" : ""; };
      expect_error(join(as), Code::aborted, {"enough"});
      EXPECT_EQ(folder.files(), std::vector<std::string>{});
    }
  }
}

TEST(Rendezvous, a_file_that_others_may_have_written_is_not_followed) {
  const RendezvousFolder folder;
  const std::string path = folder.path() + "/reshard-reshard";
  const auto write = [&](mode_t mode) {
    std::ofstream(path) << tcp::format_rendezvous_file({{}, 1, {"127.0.0.1"}, Secret::random()});
    ::chmod(path.c_str(), mode);
  };
  RendezvousOptions as = place(folder.url(), 1, 2);
  for (const mode_t mode : {0644U, 0660U, 0622U}) {
    write(mode);
    as.deadline = brief();
    expect_error(join(as), Code::deadline, {"rank 0 did not arrive", "with mode 0600"});
  }
  ::unlink(path.c_str());
  ASSERT_EQ(::symlink("/dev/null", path.c_str()), 0);
  as.deadline = brief();
  expect_error(join(as), Code::deadline, {"rank 0 did not arrive"});
}

TEST(Rendezvous, wrong_places_names_ranks_and_sizes_are_refused) {
  const RendezvousFolder folder;
  const auto refused = [&](auto change, const std::vector<std::string>& parts) {
    RendezvousOptions as = place(folder.url(), 0, 1);
    change(as);
    expect_error(join(as), Code::invalid_argument, parts);
  };
  for (const std::string url :
       {"", "folder", "http://host:1", "tcp://host", "tcp://host:0", "tcp://host:65536",
        "tcp://:80", "tcp://host:80x", "tcp://::1:80", "file://relative", "file:/x"})
    refused([&](RendezvousOptions& as) { as.url = url; }, {"tcp://HOST:PORT"});
  for (const std::string& job :
       std::vector<std::string>{"", "a b", "../x", "a/b", "\xc3\xa4", std::string(65, 'a')})
    refused([&](RendezvousOptions& as) { as.job = job; }, {"job name"});
  refused([](RendezvousOptions& as) { as.url = "tcp://127.0.0.1:80"; }, {"secret"});
  refused([](RendezvousOptions& as) { as.size = 0; }, {"0 ranks"});
  refused([](RendezvousOptions& as) { as.size = 65537; }, {"65537"});
  refused([](RendezvousOptions& as) { as.rank = Rank{1}; }, {"rank 1", "0 to 0"});
  refused([](RendezvousOptions& as) { as.rank = Rank{-1}; }, {"rank -1"});
  RendezvousOptions nowhere = place("file:///no/such/folder", 0, 1);
  expect_error(join(nowhere), Code::not_found, {"/no/such/folder"});
}

TEST(Rendezvous, calls_in_differing_order_are_an_error_of_who_came_second) {
  EXPECT_EQ(outcome(run_control_processes(
                2,
                [](ControlPlane& me) {
                  const auto result =
                      me.rank() == Rank{0}
                          ? me.barrier(Deadline::never())
                          : me.all_gather({}, Deadline::never()).map([](const auto&) {});
                  ASSERT_FALSE(result);
                  if (result.error().code == Code::invalid_argument) {
                    expect_error(result, Code::invalid_argument, {"all_gather", "barrier"});
                    me.abort(result.error().message);
                  } else {
                    expect_error(result, Code::aborted, {"aborted: ", "while others are in"});
                  }
                })),
            "");
}

TEST(Rendezvous, all_gather_carries_megabytes_and_refuses_too_many) {
  EXPECT_EQ(outcome(run_control_processes(
                3,
                [](ControlPlane& me) {
                  const auto bytes = [](int rank) {
                    return pattern(Rank{rank}, Rank{0}, MessageId{1},
                                   static_cast<std::size_t>(rank * 3'000'000 + 1));
                  };
                  const auto all = me.all_gather(bytes(me.rank().value()), patient());
                  ASSERT_TRUE(all) << outcome(all);
                  for (int r = 0; r < 3; ++r)
                    EXPECT_TRUE((*all)[static_cast<std::size_t>(r)] == bytes(r));
                  const Bytes much(std::size_t{24} << 20);
                  const auto refused = me.all_gather(much, patient());
                  ASSERT_FALSE(refused);
                  if (refused.error().code == Code::invalid_argument) {
                    expect_error(refused, Code::invalid_argument, {"64 MiB"});
                    me.abort("too much");
                  }
                })),
            "");
}

TEST(Rendezvous, a_hundred_ranks_join_and_agree) {
  const RendezvousFolder folder;
  EXPECT_EQ(outcome(run_ranks(100,
                              [&](Rank rank) -> Result<> {
                                auto me = RESHARD_TRY(join(place(folder.url(), rank.value(), 100)));
                                RESHARD_TRY(me->barrier(patient()));
                                return me->quiesce(patient());
                              })),
            "");
}

TEST(Rendezvous, nothing_of_a_group_is_left_open) {
  const auto open_files = [] {
    int n = 0;
    for (int fd = 0; fd < 1024; ++fd) n += ::fcntl(fd, F_GETFD) != -1;
    return n;
  };
  EXPECT_EQ(outcome(finish_serving(patient())), "");
  const int before = open_files();
  for (int round = 0; round < 3; ++round) {
    const RendezvousFolder folder;
    for (const auto& one : join_all({place(folder.url(), 0, 2), place(folder.url(), 1, 2)}))
      EXPECT_TRUE(one) << outcome(one);
    EXPECT_EQ(outcome(finish_serving(patient())), "");
  }
  EXPECT_EQ(open_files(), before);
}

TEST(Secret, comes_from_a_file_that_is_its_owners_only) {
  const RendezvousFolder folder;
  const std::string path = folder.path() + "/secret";
  const auto write = [&](const std::string& text, mode_t mode) {
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
  };
  expect_error(Secret::from_file(path), Code::not_found, {path});
  write("a secret of one line\nand a comment\n", 0600);
  auto secret = Secret::from_file(path);
  ASSERT_TRUE(secret) << outcome(secret);
  EXPECT_EQ(secret->text(), "a secret of one line");
  write("a secret of one line\n", 0640);
  const auto open = Secret::from_file(path);
  expect_error(open, Code::invalid_argument, {path, "0640", "chmod 600"});
  EXPECT_EQ(open.error().message.find("one line"), std::string::npos);
  write("too short\n", 0600);
  const auto short_one = Secret::from_file(path);
  expect_error(short_one, Code::invalid_argument, {path, "9 characters"});
  EXPECT_EQ(short_one.error().message.find("too short"), std::string::npos);
}

TEST(Secret, random_ones_differ_and_are_long) {
  const Secret a = Secret::random(), b = Secret::random();
  EXPECT_EQ(a.text().size(), 64U);
  EXPECT_NE(a.text(), b.text());
  EXPECT_TRUE(Secret().empty());
  EXPECT_FALSE(a.empty());
}

}  // namespace
}  // namespace reshard
