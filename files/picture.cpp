// picture.cpp - see picture.h.
#include "picture.h"

#include <algorithm>
#include <dlfcn.h>
#include <zlib.h>

#include "base/console.h"
#include "base/file.h"

namespace {
struct Color {
    int r, g, b;
};
constexpr Color INK = {38, 38, 38}, PALE = {217, 217, 217}, WHITE = {255, 255, 255};
// Nine colours of viridis (van der Walt & Smith 2015): lightness grows with the value, also in grey
// and for the colour-blind.
Color colormap(double x) {
    static const int V[9][3] = {{68, 1, 84},    {71, 44, 122}, {59, 81, 139},  {44, 113, 142}, {33, 144, 141},
                                {39, 173, 129}, {92, 200, 99}, {170, 220, 50}, {253, 231, 37}};
    if (std::isnan(x)) return PALE;
    const double at = std::clamp(x, 0.0, 1.0) * 8;
    const int i = std::min(7, int(at));
    auto mix = [&](int k) { return int(std::lround(V[i][k] + (V[i + 1][k] - V[i][k]) * (at - i))); };
    return {mix(0), mix(1), mix(2)};
}

std::string big_endian(size_t n) { return {char(n >> 24), char(n >> 16), char(n >> 8), char(n)}; }
const Bytef* bytes_of(const std::string& text) { return reinterpret_cast<const Bytef*>(text.data()); }
// A heatmap as a PNG file (RFC 2083) with `cell` x `cell` pixels for each value. The palette has
// 255 colours, then the colour of NaN.
std::string png_of(const Heatmap& m, int cell) {
    const std::string header = big_endian(size_t(m.columns * cell)) + big_endian(size_t(m.rows * cell)) +
                               std::string("\x08\x03\0\0\0", 5);    // 8 bits a pixel, by palette
    std::string palette, rows, packed;
    for (int i = 0; i < 256; i++) {
        const Color c = colormap(i < 255 ? i / 254.0 : NAN);
        palette += {char(c.r), char(c.g), char(c.b)};
    }
    for (int i = 0; i < m.rows; i++) {
        std::string row(1, '\0');    // the line's filter: none
        for (int j = 0; j < m.columns; j++) {
            const double x = m.values[size_t(i * m.columns + j)];
            row += std::string(size_t(cell), char(std::isnan(x) ? 255 : std::lround(std::clamp(x, 0.0, 1.0) * 254)));
        }
        for (int k = 0; k < cell; k++) rows += row;
    }
    uLongf length = compressBound(rows.size());
    packed.resize(length);
    CHECK(compress(reinterpret_cast<Bytef*>(packed.data()), &length, bytes_of(rows), rows.size()) == Z_OK, "zlib");
    packed.resize(length);
    auto chunk = [](const std::string& type, const std::string& data) {
        const std::string all = type + data;
        return big_endian(data.size()) + all + big_endian(crc32(0, bytes_of(all), uInt(all.size())));
    };
    return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("PLTE", palette) + chunk("IDAT", packed) +
           chunk("IEND", "");
}
}    // namespace

std::string base64(const std::string& data) {
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    for (size_t i = 0; i < data.size(); i += 3) {
        unsigned three = 0;
        for (size_t k = i; k < i + 3; k++) three = three << 8 | (k < data.size() ? bytes_of(data)[k] : 0);
        for (size_t k = 0; k < 4; k++) out += i + k <= data.size() ? DIGITS[three >> (18 - 6 * k) & 63] : '=';
    }
    return out;
}
bool base64_decode(std::string_view text, std::string& data) {
    data.clear();
    if (text.size() % 4) return false;
    for (int padding = 0; text.ends_with('=') && padding < 2; padding++) text.remove_suffix(1);
    uint32_t bits = 0;
    int count = 0;
    for (char c : text) {
        const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                          : c >= 'a' && c <= 'z' ? c - 'a' + 26
                          : c >= '0' && c <= '9' ? c - '0' + 52
                          : c == '+'             ? 62
                          : c == '/'             ? 63
                                                 : -1;
        if (value < 0) return false;
        bits = bits << 6 | uint32_t(value);
        count += 6;
        if (count < 8) continue;
        count -= 8;
        data += char(bits >> count & 0xFF);
    }
    return true;
}

namespace {
// Text for an XML document. XML allows neither control characters, which are escaped, nor U+FFFE
// and U+FFFF, which become U+FFFD.
std::string xml_text(const std::string& text) {
    std::string out;
    for (char c : escape_control(text)) {
        out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string{c};
        if (out.ends_with("\xEF\xBF\xBE") || out.ends_with("\xEF\xBF\xBF")) out.back() = '\xBD';    // U+FFFD
    }
    return out;
}

// Width of text: monospace fonts (DejaVu Sans Mono, Liberation Mono, Courier) advance by 0.6 of
// their size.
double text_units(const std::string& text, double size) { return 0.6 * size * display_width(text); }

// An SVG file's elements; right and bottom grow with all that is drawn.
struct Svg {
    std::string elements;
    double right = 0, bottom = 0;
    void reach(double x, double y) { right = std::max(right, x), bottom = std::max(bottom, y); }
    void add(const Svg& part) {
        elements += part.elements;
        reach(part.right, part.bottom);
    }
    static std::string rgb(Color c) { return formatted("rgb(%d,%d,%d)", c.r, c.g, c.b); }

    // (x, y): left end (align 0), middle (0.5) or right end (1) of the base line; up: rotated
    // upwards.
    void text(const std::string& text, double x, double y, double size, double align = 0, bool up = false,
              Color color = INK) {
        static const char* const ANCHORS[] = {"start", "middle", "end"};
        elements += formatted("<text x=\"%.2f\" y=\"%.2f\" font-size=\"%g\" text-anchor=\"%s\" fill=\"%s\"", x, y, size,
                              ANCHORS[int(2 * align)], rgb(color).c_str()) +
                    (up ? formatted(" transform=\"rotate(-90 %.2f %.2f)\"", x, y) : "") + ">" + xml_text(text) +
                    "</text>\n";
        const double w = text_units(text, size);
        if (up) reach(x + size / 2, y + align * w);
        else reach(x + (1 - align) * w, y + size / 2);
    }
    void line(const std::vector<Point>& points, double thick, Color color = INK) {
        elements +=
            formatted("<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%g\" points=\"", rgb(color).c_str(), thick);
        for (const Point& p : points) {
            elements += formatted("%.2f,%.2f ", p.x, p.y);
            reach(p.x, p.y);
        }
        elements += "\"/>\n";
    }
    void dot(double x, double y, double radius, Color color) {
        elements += formatted("<circle cx=\"%.2f\" cy=\"%.2f\" r=\"%g\" fill=\"%s\" stroke=\"#fff\"/>\n", x, y, radius,
                              rgb(color).c_str());
        reach(x + radius, y + radius);
    }
    // Draws cells of `cell` units as one embedded PNG image, because separate squares would show
    // seams and make large files. The image has two pixels per unit, as a .png file has at most,
    // because librsvg would blur a coarser image.
    void cells(const Heatmap& m, double x, double y, int cell) {
        const int w = m.columns * cell, h = m.rows * cell;
        elements += formatted(
                        "<image x=\"%g\" y=\"%g\" width=\"%d\" height=\"%d\" "
                        "style=\"image-rendering:pixelated\" "
                        "xlink:href=\"data:image/png;base64,",
                        x, y, w, h) +
                    base64(png_of(m, 2 * cell)) + "\"/>\n";
        reach(x + w, y + h);
    }
    static constexpr int MARGIN = 16;
    double width() const { return std::ceil(right + 2 * MARGIN); }
    double height() const { return std::ceil(bottom + 2 * MARGIN); }
    std::string file(int zoom = 1) const {    // zoom: pixels per SVG unit
        return formatted(
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" xmlns:xlink=\"http://www.w3.org/1999/xlink\" "
                   "width=\"%.0f\" height=\"%.0f\" viewBox=\"%d %d %.0f %.0f\" font-family=\"monospace\" "
                   "xml:space=\"preserve\">\n<rect x=\"%d\" y=\"%d\" width=\"100%%\" height=\"100%%\" "
                   "fill=\"white\"/>\n",
                   width() * zoom, height() * zoom, -MARGIN, -MARGIN, width(), height(), -MARGIN, -MARGIN) +
               elements + "</svg>\n";
    }
};

// ---- files --------------------------------------------------------------------------------------

// The stable interface of librsvg (rsvg.h) and of the gdk-pixbuf that it depends on, declared here:
// the build needs no header or library. The errors are GError**, or null.
struct Renderer {
    struct Symbol {
        void* address;
        template <class F> operator F*() const { return reinterpret_cast<F*>(address); }
    };
    void* library = dlopen("librsvg-2.so.2", RTLD_NOW);
    Symbol find(const char* name) const { return {library ? dlsym(library, name) : nullptr}; }
    void* (*parse)(const char* svg, size_t bytes, void** error) = find("rsvg_handle_new_from_data");
    void* (*draw)(void* handle, const char* id) = find("rsvg_handle_get_pixbuf_sub");
    int (*save)(void* pixbuf, char** data, size_t* bytes, const char* type, void** error,
                ...) = find("gdk_pixbuf_save_to_buffer");
    void (*release)(void* object) = find("g_object_unref");
    void (*free)(void* data) = find("g_free");
    bool found = parse && draw && save && release && free;
};
const Renderer& renderer() {
    static const Renderer loaded;
    return loaded;
}
bool is_png(const std::string& path) { return path.ends_with(".png"); }

Result<std::string> rendered(const std::string& path, const Svg& picture) {
    const Renderer& r = renderer();
    const int zoom = picture.width() * picture.height() < 4e6 ? 2 : 1;    // sharp letters
    const std::string svg = picture.file(zoom);
    void* handle = r.parse(svg.data(), svg.size(), nullptr);
    void* pixbuf = handle ? r.draw(handle, nullptr) : nullptr;    // null if it is too large
    char* data = nullptr;
    size_t bytes = 0;
    const bool saved = pixbuf && r.save(pixbuf, &data, &bytes, "png", nullptr, nullptr);
    const std::string png = saved ? std::string(data, bytes) : "";
    if (handle) r.release(handle);
    if (pixbuf) r.release(pixbuf);
    r.free(data);
    if (saved) return png;
    return fail(Exit::run,
                "%s: librsvg could not draw %.0f x %.0f pixels; write an .svg file, or let the picture show less, "
                "such as fewer heads or lengths",
                path.c_str(), picture.width() * zoom, picture.height() * zoom);
}
Status write_picture(const std::string& path, const Svg& picture) {
    TRY(picture_check(path));
    return replace_file(path, is_png(path) ? TRY(rendered(path, picture)) : picture.file());
}

// ---- heatmaps -----------------------------------------------------------------------------------

constexpr double NAME = 10, TITLE = 12, HEAD = 15, GAP = 18;    // letter sizes; GAP: space between panels

double widest(const std::vector<std::string>& names) {
    double most = 0;
    for (auto& name : names) most = std::max(most, text_units(name, NAME));
    return most;
}
int cell_of(const HeatmapPicture& all, const HeatmapPanel& m) {
    return std::clamp(all.size / std::max({m.rows, m.columns, 1}), 1, 36);
}
bool upright(const HeatmapPicture& all, const HeatmapPanel& m) {    // whether names are wider than a cell
    return widest(m.column_names) > cell_of(all, m) - 2;
}
// A panel with names and title at (x, y). left, below: space for the names.
Svg draw_map(const HeatmapPanel& m, const HeatmapPicture& all, double x, double y, double left, double below) {
    Svg svg;
    const int cell = cell_of(all, m), every = std::max(1, int(std::ceil((NAME + 2) / cell)));
    const double width = m.columns * cell, height = m.rows * cell;
    const bool up = upright(all, m);
    if (!m.title.empty()) svg.text(m.title, x + left, y - 8, TITLE);
    svg.cells(m, x + left, y, cell);
    for (int i = 0; i < int(m.row_names.size()); i += every)
        svg.text(m.row_names[size_t(i)], x + left - 4, y + (i + 0.5) * cell + NAME / 3, NAME, 1);
    for (int j = 0; j < int(m.column_names.size()); j += every)
        svg.text(m.column_names[size_t(j)], x + left + (j + 0.5) * cell + (up ? NAME / 3 : 0),
                 y + height + (up ? 4 : NAME + 3), NAME, up ? 1 : 0.5, up);
    for (size_t k = 0; k < m.texts.size(); k++) {
        if (text_units(m.texts[k], NAME) > cell) continue;
        svg.text(m.texts[k], x + left + (double(k % size_t(m.columns)) + 0.5) * cell,
                 y + (double(k / size_t(m.columns)) + 0.5) * cell + NAME / 3, NAME, 0.5, false,
                 m.values[k] < 0.6 ? WHITE : INK);
    }
    if (!all.column_axis.empty())
        svg.text(all.column_axis, x + left + width / 2, y + height + below + TITLE + 4, TITLE, 0.5);
    if (!all.row_axis.empty()) svg.text(all.row_axis, x + TITLE, y + height / 2, TITLE, 0.5, true);
    return svg;
}
}    // namespace

Status picture_check(const std::string& path, const char* flag) {
    if (!is_png(path) && !path.ends_with(".svg"))
        return fail(Exit::usage, "%s %s: expected a file's name that ends in .png or .svg", flag, path.c_str());
    if (is_png(path) && !renderer().found)
        return fail(Exit::run,
                    "%s %s: there is no librsvg-2.so.2 here to make a .png (Debian's package librsvg2-2); an .svg "
                    "needs none",
                    flag, path.c_str());
    return check_writable(path, flag);
}

Status write_heatmaps(const std::string& path, const HeatmapPicture& all) {
    Svg svg;
    svg.text(all.title, 0, HEAD, HEAD);
    const bool titled = std::any_of(all.maps.begin(), all.maps.end(), [](auto& m) { return !m.title.empty(); });
    const double title = titled ? TITLE + 8 : 0, top = HEAD + GAP + title;
    double left = 0, below = 0, y = top, right = 0;
    for (auto& m : all.maps) {
        left = std::max(left, widest(m.row_names) + (m.row_names.empty() ? 0 : 4));
        below = std::max(below, upright(all, m) ? widest(m.column_names) + 4 : NAME + 6);
    }
    left += all.row_axis.empty() ? 0 : TITLE + 8;
    for (size_t i = 0; i < all.maps.size(); i += size_t(all.across)) {
        double x = 0, lowest = y;
        for (size_t k = i; k < std::min(all.maps.size(), i + size_t(all.across)); k++) {
            const Svg map = draw_map(all.maps[k], all, x, y, left, below);
            svg.add(map);
            x = std::ceil(map.right + GAP);
            lowest = std::max(lowest, map.bottom);
        }
        right = std::max(right, x);
        y = std::ceil(lowest + GAP + title);
    }
    constexpr int height = 160, width = 14;
    Heatmap bar{height, width};
    for (int i = 0; i < height * width; i++) bar.values.push_back(1 - double(i / width) / height);
    if (!all.legend.empty()) svg.cells(bar, right + GAP, top, 1);
    for (auto& [value, name] : all.legend)
        svg.text(name, right + GAP + 20, top + (1 - value) * height + NAME / 3, NAME);
    return write_picture(path, svg);
}

// ---- curves -------------------------------------------------------------------------------------

Status write_curves(const std::string& path, const CurvePicture& p) {
    constexpr double W = 640, H = 360, LEFT = 70, TOP = 40;
    Axis ax{p.log_x}, ay;
    for (auto& c : p.curves)
        for (auto* points : {&c.line, &c.marks})
            for (auto& at : *points) ax.cover(at.x), ay.cover(at.y);
    ax.widen_if_single();
    ay.widen_if_single();
    const double pad = 0.05 * (ay.high - ay.low);
    ay.low -= pad;
    ay.high += pad;
    auto x_of = [&](double x) { return LEFT + ax.fraction(x) * W; };
    auto y_of = [&](double y) { return TOP + (1 - ay.fraction(y)) * H; };
    Svg svg;
    svg.text(p.title, 0, HEAD, HEAD);
    svg.text(p.y_axis, TITLE, TOP + H / 2, TITLE, 0.5, true);
    svg.text(p.x_axis, LEFT + W / 2, TOP + H + 44, TITLE, 0.5);
    for (double x : ax.ticks(8)) {
        svg.line({{x_of(x), TOP}, {x_of(x), TOP + H}}, 1, PALE);
        svg.text(formatted("%.6g", x), x_of(x), TOP + H + 18, NAME, 0.5);
    }
    for (double y : ay.ticks(8)) {
        svg.line({{LEFT, y_of(y)}, {LEFT + W, y_of(y)}}, 1, PALE);
        svg.text(formatted("%.6g", y), LEFT - 6, y_of(y) + NAME / 3, NAME, 1);
    }
    svg.line({{LEFT, TOP}, {LEFT, TOP + H}, {LEFT + W, TOP + H}}, 1.2);
    for (size_t i = 0; i < p.curves.size(); i++) {
        std::vector<Point> points;
        for (auto& at : p.curves[i].line) points.push_back({x_of(at.x), y_of(at.y)});
        // The map's last fifth is yellow, which is hard to see on white.
        const Color color = colormap(0.05 + 0.75 * double(i) / double(std::max<size_t>(1, p.curves.size() - 1)));
        svg.line(points, 1.8, color);
        for (auto& at : p.curves[i].marks) svg.dot(x_of(at.x), y_of(at.y), 4, color);
        svg.text(p.curves[i].legend, LEFT, TOP + H + 66 + 16 * double(i), NAME, 0, false, color);
    }
    return write_picture(path, svg);
}
