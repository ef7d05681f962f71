// SPDX-License-Identifier: Apache-2.0
// Sends half of the columns of a weight matrix from one process to another in four ways: as an MPI
// derived datatype, packed by MPI_Pack, packed by a loop of memcpy, and by that loop in pieces,
// each of which is sent while the next one is packed. The table shows whether MPI's datatypes are
// worth using.
//
//   mpirun -n 2 mpi_datatypes_bench_LIBRARY [rounds]
//
// Prints one JSON object per line: the median and the best time of each way. All ways take turns.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Shape {
  const char* name;
  std::size_t rows, columns;  ///< of two-byte elements.
};
constexpr Shape kShapes[] = {
    {"4096x14336", 4096, 14336}, {"2688x1856", 2688, 1856}, {"1856x2688", 1856, 2688}};
constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr int kTag = 1;

/// The left half of the columns, on either side.
struct Half {
  explicit Half(const Shape& shape)
      : rows(shape.rows), run(shape.columns), pitch(shape.columns * 2), memory(rows * pitch) {}
  std::size_t bytes() const { return rows * run; }
  std::size_t rows, run, pitch;  ///< bytes of a row's half and of a row.
  std::vector<char> memory;

  void pack(char* to, std::size_t first, std::size_t count) const {
    for (std::size_t r = 0; r < count; ++r)
      std::memcpy(to + r * run, memory.data() + (first + r) * pitch, run);
  }
  void unpack(const char* from, std::size_t first, std::size_t count) {
    for (std::size_t r = 0; r < count; ++r)
      std::memcpy(memory.data() + (first + r) * pitch, from + r * run, run);
  }
};

struct Staging {
  std::vector<char> whole;
  std::array<std::vector<char>, 2> pieces{std::vector<char>(kPiece), std::vector<char>(kPiece)};
};

int size_of(std::size_t bytes) { return static_cast<int>(bytes); }

void move_bytes(bool sending, char* bytes, std::size_t size) {
  if (sending) {
    MPI_Send(bytes, size_of(size), MPI_BYTE, 1, kTag, MPI_COMM_WORLD);
  } else {
    MPI_Recv(bytes, size_of(size), MPI_BYTE, 0, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
}

MPI_Datatype type_of(const Half& half) {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_vector(size_of(half.rows), size_of(half.run), size_of(half.pitch), MPI_BYTE, &type);
  MPI_Type_commit(&type);
  return type;
}

void by_datatype(bool sending, Half& half, Staging&) {
  MPI_Datatype type = type_of(half);
  if (sending) {
    MPI_Send(half.memory.data(), 1, type, 1, kTag, MPI_COMM_WORLD);
  } else {
    MPI_Recv(half.memory.data(), 1, type, 0, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  MPI_Type_free(&type);
}

void by_mpi_pack(bool sending, Half& half, Staging& staging) {
  MPI_Datatype type = type_of(half);
  const int bytes = size_of(half.bytes());
  int at = 0;
  if (sending)
    MPI_Pack(half.memory.data(), 1, type, staging.whole.data(), bytes, &at, MPI_COMM_WORLD);
  move_bytes(sending, staging.whole.data(), half.bytes());
  if (!sending)
    MPI_Unpack(staging.whole.data(), bytes, &at, half.memory.data(), 1, type, MPI_COMM_WORLD);
  MPI_Type_free(&type);
}

void by_memcpy(bool sending, Half& half, Staging& staging) {
  if (sending) half.pack(staging.whole.data(), 0, half.rows);
  move_bytes(sending, staging.whole.data(), half.bytes());
  if (!sending) half.unpack(staging.whole.data(), 0, half.rows);
}

void by_pieces(bool sending, Half& half, Staging& staging) {
  const std::size_t rows = std::max<std::size_t>(1, kPiece / half.run);
  const std::size_t count = (half.rows + rows - 1) / rows;
  const auto rows_of = [&](std::size_t i) { return std::min(rows, half.rows - i * rows); };
  std::array<MPI_Request, 2> requests{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  const auto start = [&](std::size_t i) {
    char* const piece = staging.pieces[i % 2].data();
    const int bytes = size_of(rows_of(i) * half.run);
    if (sending) {
      half.pack(piece, i * rows, rows_of(i));
      MPI_Isend(piece, bytes, MPI_BYTE, 1, kTag, MPI_COMM_WORLD, &requests[i % 2]);
    } else {
      MPI_Irecv(piece, bytes, MPI_BYTE, 0, kTag, MPI_COMM_WORLD, &requests[i % 2]);
    }
  };
  for (std::size_t i = 0; i < std::min<std::size_t>(2, count); ++i) start(i);
  for (std::size_t i = 0; i < count; ++i) {
    MPI_Wait(&requests[i % 2], MPI_STATUS_IGNORE);
    if (!sending) half.unpack(staging.pieces[i % 2].data(), i * rows, rows_of(i));
    if (i + 2 < count) start(i + 2);
  }
}

struct Way {
  const char* name;
  void (*go)(bool sending, Half& half, Staging& staging);
};
constexpr Way kWays[] = {{"datatype", by_datatype},
                         {"mpi_pack", by_mpi_pack},
                         {"memcpy", by_memcpy},
                         {"memcpy_in_pieces", by_pieces}};

/// Seconds from a barrier until the sender has received the acknowledgement.
double time_of(const Way& way, bool sending, Half& half, Staging& staging) {
  char done = 0;
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  way.go(sending, half, staging);
  if (sending) {
    MPI_Recv(&done, 1, MPI_BYTE, 1, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else {
    MPI_Send(&done, 1, MPI_BYTE, 0, kTag, MPI_COMM_WORLD);
  }
  return MPI_Wtime() - begin;
}

/// True if the receiver's half equals the sender's and nothing else was written.
bool right(const Half& got) {
  for (std::size_t i = 0; i < got.memory.size(); ++i) {
    const bool inside = i % got.pitch < got.run;
    if (got.memory[i] != (inside ? static_cast<char>(i * 31 % 251) : '\0')) return false;
  }
  return true;
}

bool measure(const Shape& shape, bool sending, int rounds) {
  Half half(shape);
  Staging staging;
  staging.whole.resize(half.bytes());
  std::array<std::vector<double>, std::size(kWays)> seconds;
  bool all_right = true;
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t w = 0; w < std::size(kWays); ++w) {
      for (std::size_t i = 0; i < half.memory.size(); ++i)
        half.memory[i] = sending ? static_cast<char>(i * 31 % 251) : '\0';
      const double time = time_of(kWays[w], sending, half, staging);
      if (round >= 0) seconds[w].push_back(time);
      if (!sending) all_right = all_right && right(half);
    }
  }
  for (std::size_t w = 0; sending && w < std::size(kWays); ++w) {
    std::ranges::sort(seconds[w]);
    const double median = seconds[w][seconds[w].size() / 2];
    std::printf(
        "{\"shape\": \"%s\", \"bytes\": %zu, \"way\": \"%s\", \"median_ms\": %.3f, \"best_ms\": "
        "%.3f, \"median_gb_s\": %.2f}\n",
        shape.name, half.bytes(), kWays[w].name, median * 1e3, seconds[w].front() * 1e3,
        static_cast<double>(half.bytes()) / median / 1e9);
  }
  return all_right;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 31;
  bool good = size == 2 && rounds > 0;
  if (!good && rank == 0) std::fprintf(stderr, "mpirun -n 2 mpi_datatypes_bench [rounds > 0]\n");
  if (good)
    for (const Shape& shape : kShapes) good = measure(shape, rank == 0, rounds) && good;
  if (!good) std::fprintf(stderr, "rank %d: failed\n", rank);
  MPI_Finalize();
  return good ? 0 : 1;
}
