#include "app/config/yaml_tree.h"

#include <map>
#include <sstream>

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "app/config/load.h"

namespace axial::app {
namespace {

constexpr const char* kByteOrderMark = "\xef\xbb\xbf";
constexpr const char* kOpenQuote = "a quotation mark is not closed";

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const Origin& origin, const std::string& text) : origin_(origin), text_(text) {}

  NodePtr root() const { return root_; }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark&, YAML::anchor_t anchor) override {
    // yaml-cpp's marks of nulls are wrong; nobody reads this line (values are reported at their key).
    add(std::make_shared<Node>(), anchor, 0);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchored_.find(anchor);
    if (found == anchored_.end()) fail(mark.line + 1, "an alias (*) stands inside of what it names");
    add(found->second, 0, mark.line + 1);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    // The parser gives "?" to plain scalars and "!" to quoted ones.
    check_tag(tag, mark);
    check_closed(mark);
    auto node = std::make_shared<Node>();
    node->kind = Node::Kind::kScalar;
    node->quoted = tag == "!";
    node->text = value;
    add(std::move(node), anchor, mark.line + 1);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Node::Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Node::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    std::shared_ptr<Node> node;
    YAML::anchor_t anchor;
    int line;
    bool has_key = false;  // a key was read and its value comes next
    std::string key;
    int key_line = 0;
    std::map<std::string, int> lines;  // first line of each key
  };

  [[noreturn]] void fail(int line, const std::string& message) const {
    throw ConfigError(origin_.at(line) + ": " + message);
  }

  void check_tag(const std::string& tag, const YAML::Mark& mark) const {
    if (!tag.empty() && tag != "?" && tag != "!")
      fail(mark.line + 1, "tags such as " + excerpt(tag) + " are not supported; write the value without one");
  }

  // yaml-cpp takes what follows a quotation mark that nothing closes, to the end of the text, for the value.
  void check_closed(const YAML::Mark& mark) const {
    const std::size_t start = static_cast<std::size_t>(mark.pos) + (text_.rfind(kByteOrderMark, 0) == 0 ? 3 : 0);
    const char quote = start < text_.size() ? text_[start] : ' ';
    if (quote != '"' && quote != '\'') return;
    for (std::size_t i = start + 1; i < text_.size(); ++i) {
      if (quote == '"' && text_[i] == '\\') {
        ++i;
      } else if (text_[i] == quote) {
        if (quote == '"' || i + 1 == text_.size() || text_[i + 1] != quote) return;
        ++i;  // '' is a character of the value
      }
    }
    fail(mark.line + 1, kOpenQuote);
  }

  std::string path(const std::string& leaf) const {
    std::string result;
    for (const Open& open : stack_) {
      if (&open != &stack_.back() && open.has_key) result += excerpt(open.key) + ".";
    }
    return result + excerpt(leaf);
  }

  void open(Node::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    check_tag(tag, mark);
    if (!stack_.empty() && stack_.back().node->kind == Node::Kind::kMap && !stack_.back().has_key)
      fail(mark.line + 1, "a key must be a single word, not a list or a map (is a bracket not closed?)");
    auto node = std::make_shared<Node>();
    node->kind = kind;
    stack_.push_back({std::move(node), anchor, mark.line + 1, false, {}, 0, {}});
  }

  void close() {
    Open done = std::move(stack_.back());
    stack_.pop_back();
    add(std::move(done.node), done.anchor, done.line);
  }

  void add(NodePtr node, YAML::anchor_t anchor, int line) {
    if (anchor != 0) anchored_[anchor] = node;
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = stack_.back();
    if (parent.node->kind == Node::Kind::kList) {
      parent.node->items.push_back(std::move(node));
    } else if (!parent.has_key) {
      if (node->kind != Node::Kind::kScalar)
        fail(line > 0 ? line : parent.line, "a key must be a single word (is a bracket not closed?)");
      const auto [first, fresh] = parent.lines.emplace(node->text, line);
      if (!fresh) {
        fail(line, path(node->text) + ": set again; it was set on line " + std::to_string(first->second) +
                       " already, keep one of the two");
      }
      parent.has_key = true;
      parent.key = node->text;
      parent.key_line = line;
    } else {
      parent.node->entries.push_back({parent.key, parent.key_line, std::move(node)});
      parent.has_key = false;
    }
  }

  const Origin& origin_;
  const std::string& text_;
  NodePtr root_;
  std::vector<Open> stack_;
  std::map<YAML::anchor_t, NodePtr> anchored_;
};

}  // namespace

ConfigError::ConfigError(const std::string& message)
    : std::runtime_error([&] {
        std::string line = message;
        for (char& c : line) c = static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
        return line;
      }()) {}

std::string excerpt(const std::string& text) { return text.size() > 60 ? text.substr(0, 60) + "..." : text; }

NodePtr parse_yaml(const std::string& text, const Origin& origin) {
  std::istringstream stream(text);
  TreeBuilder builder(origin, text);
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return nullptr;
    TreeBuilder rest(origin, text);
    if (parser.HandleNextDocument(rest))
      throw ConfigError(origin.name + ": more than one YAML document (a second ---, or text after the end)");
  } catch (const YAML::DeepRecursion& error) {
    throw ConfigError(origin.at(error.mark.line + 1) + ": not valid YAML for a configuration: nested too deep");
  } catch (const YAML::Exception& error) {
    const bool quote = error.msg == YAML::ErrorMsg::EOF_IN_SCALAR;
    throw ConfigError(origin.at(error.mark.line + 1) + ": " + (quote ? kOpenQuote : "not valid YAML: " + error.msg));
  }
  return builder.root();
}

}  // namespace axial::app
