#include "model/io/text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "model/io/text/byte_alphabet.h"

namespace kvcast::text {
namespace {

struct Piece {
  Span span;
  bool is_match;
};

/// One word in pieces that cover it, some of them empty.
void find_pieces(const SplitByPattern& split, std::string_view word,
                 const std::vector<Span>& matches, std::vector<Piece>& pieces) {
  pieces.clear();
  std::size_t done = 0;
  for (const Span match : matches) {
    if (done < match.begin) pieces.push_back({{done, match.begin}, split.invert});
    pieces.push_back({match, !split.invert});
    done = match.end;
  }
  if (done < word.size()) pieces.push_back({{done, word.size()}, split.invert});
}

/// Joins neighbours: a match the piece before it (or after it), unless that is a match too; or,
/// Contiguous, pieces of one kind.
void join(std::vector<Piece>& pieces, SplitBehavior behavior) {
  std::vector<Piece> joined;
  const bool backwards = behavior == SplitBehavior::MergedWithNext;
  if (backwards) std::reverse(pieces.begin(), pieces.end());
  bool previous_is_match =
      behavior == SplitBehavior::Contiguous && !pieces.empty() && !pieces.front().is_match;
  for (const Piece& piece : pieces) {
    const bool joins = behavior == SplitBehavior::Contiguous ? piece.is_match == previous_is_match
                                                             : piece.is_match && !previous_is_match;
    if (joins && !joined.empty()) {
      Span& last = joined.back().span;
      (backwards ? last.begin : last.end) = backwards ? piece.span.begin : piece.span.end;
    } else {
      joined.push_back(piece);
    }
    previous_is_match = piece.is_match;
  }
  if (backwards) std::reverse(joined.begin(), joined.end());
  pieces = std::move(joined);
}

void apply(const SplitByPattern& split, Words& words, bool) {
  std::vector<Span> cut;
  std::vector<Span> matches;
  std::vector<Piece> pieces;
  for (const Span word : words.spans) {
    matches.clear();
    split.pattern.find_all(slice(words.text, word), matches);
    find_pieces(split, slice(words.text, word), matches, pieces);
    if (split.behavior != SplitBehavior::Isolated && split.behavior != SplitBehavior::Removed) {
      join(pieces, split.behavior);
    }
    for (const Piece& piece : pieces) {
      if (piece.span.begin == piece.span.end) continue;
      if (split.behavior == SplitBehavior::Removed && piece.is_match) continue;
      cut.push_back({word.begin + piece.span.begin, word.begin + piece.span.end});
    }
  }
  words.spans = std::move(cut);
}

/// Rewrites each word; `write` appends the new form of one to a text.
template <typename Write>
void rewrite(Words& words, Write write) {
  Words rewritten;
  rewritten.text.reserve(words.text.size() + words.text.size() / 4);
  rewritten.spans.reserve(words.spans.size());
  for (const Span word : words.spans) {
    const std::size_t begin = rewritten.text.size();
    write(slice(words.text, word), word, rewritten.text);
    rewritten.spans.push_back({begin, rewritten.text.size()});
  }
  words = std::move(rewritten);
}

void apply(const ToByteAlphabet& step, Words& words, bool) {
  if (step.add_prefix_space) {
    rewrite(words, [](std::string_view word, Span, std::string& out) {
      if (!word.starts_with(' ')) out += ' ';
      out += word;
    });
  }
  if (step.pattern) apply(SplitByPattern{*step.pattern}, words, false);
  rewrite(words, [](std::string_view word, Span, std::string& out) {
    append_in_byte_alphabet(word, out);
  });
}

void apply(const ToMetaspace& step, Words& words, bool is_first) {
  rewrite(words, [&](std::string_view word, Span span, std::string& out) {
    const bool may_prepend =
        step.prepend == ToMetaspace::Prepend::Always ||
        (step.prepend == ToMetaspace::Prepend::First && is_first && span.begin == 0);
    if (may_prepend && !word.starts_with(' ') && !word.starts_with(step.replacement)) {
      out += step.replacement;
    }
    for (const char c : word) {
      if (c == ' ') {
        out += step.replacement;
      } else {
        out += c;
      }
    }
  });
  if (!step.split) return;
  std::vector<Span> cut;
  for (const Span span : words.spans) {
    const std::string_view word = slice(words.text, span);
    std::size_t begin = 0;
    while (begin < word.size()) {
      const std::size_t next = word.find(step.replacement, begin + 1);
      const std::size_t end = std::min(next, word.size());
      cut.push_back({span.begin + begin, span.begin + end});
      begin = end;
    }
  }
  words.spans = std::move(cut);
}

}  // namespace

Words PreTokenizer::cut(std::string text, bool is_first) const {
  Words words{std::move(text), {}};
  words.spans.push_back({0, words.text.size()});
  for (const PreTokenizerStep& step : steps) {
    // When a step removed the first word, none stands at the beginning any more.
    is_first = is_first && !words.spans.empty() && words.spans.front().begin == 0;
    std::visit([&](const auto& how) { apply(how, words, is_first); }, step);
  }
  return words;
}

}  // namespace kvcast::text
