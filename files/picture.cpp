// picture.cpp - see picture.h. A picture is drawn twice: to measure it, then onto the file's
// surface.
#include "picture.h"

#include <algorithm>
#include <dlfcn.h>
#include <functional>

#include "base/file.h"

namespace {
// cairo's stable interface (cairo.h), declared here: the build needs no header or library.
struct Cairo {
    struct Context;
    struct Surface;
    struct Pattern;
    struct Extents {
        double x, y, width, height, x_advance, y_advance;
    };
    typedef int (*Writer)(void* to, const unsigned char* data, unsigned bytes);
    enum { FORMAT_RGB24 = 1, FILTER_NEAREST = 3 };
    Surface* (*image_surface_create)(int format, int width, int height);
    Surface* (*svg_surface_create_for_stream)(Writer, void* to, double width, double height);
    unsigned char* (*image_surface_get_data)(Surface*);
    int (*image_surface_get_stride)(Surface*);
    void (*surface_mark_dirty)(Surface*), (*surface_finish)(Surface*), (*surface_destroy)(Surface*);
    int (*surface_status)(Surface*), (*surface_write_to_png_stream)(Surface*, Writer, void* to);
    Context* (*create)(Surface*);
    void (*destroy)(Context*), (*save)(Context*), (*restore)(Context*), (*stroke)(Context*);
    void (*paint)(Context*), (*rotate)(Context*, double), (*scale)(Context*, double, double);
    void (*translate)(Context*, double, double), (*move_to)(Context*, double, double);
    void (*line_to)(Context*, double, double);
    void (*set_source_rgb)(Context*, double, double, double), (*set_line_width)(Context*, double);
    void (*set_source_surface)(Context*, Surface*, double x, double y), (*set_font_size)(Context*, double);
    void (*select_font_face)(Context*, const char* name, int slant, int weight), (*show_text)(Context*, const char*);
    void (*text_extents)(Context*, const char*, Extents*), (*pattern_set_filter)(Pattern*, int);
    Pattern* (*get_source)(Context*);
    int (*status)(Context*);
    const char* (*status_to_string)(int);
    bool found = true;

    Cairo() {
        void* library = dlopen("libcairo.so.2", RTLD_NOW);
        auto find = [&](const char* name, auto& to) {
            to = reinterpret_cast<std::decay_t<decltype(to)>>(library ? dlsym(library, name) : nullptr);
            found = found && to;
        };
#define FIND(name) find("cairo_" #name, name)
        FIND(image_surface_create), FIND(svg_surface_create_for_stream), FIND(image_surface_get_data);
        FIND(image_surface_get_stride), FIND(surface_mark_dirty), FIND(surface_finish), FIND(surface_destroy);
        FIND(surface_status), FIND(surface_write_to_png_stream), FIND(create), FIND(destroy), FIND(save), FIND(restore);
        FIND(stroke), FIND(paint), FIND(rotate), FIND(scale), FIND(translate), FIND(move_to), FIND(line_to);
        FIND(set_source_rgb), FIND(set_line_width), FIND(set_source_surface), FIND(set_font_size);
        FIND(select_font_face), FIND(show_text), FIND(text_extents), FIND(pattern_set_filter), FIND(get_source);
        FIND(status), FIND(status_to_string);
#undef FIND
    }
};
const Cairo& cairo() {
    static const Cairo loaded;
    return loaded;
}
bool is_png(const std::string& path) { return path.ends_with(".png"); }

struct Color {
    double r, g, b;
};
constexpr Color INK = {0.15, 0.15, 0.15}, PALE = {0.85, 0.85, 0.85};
// Nine colours of viridis (van der Walt & Smith 2015): lightness grows with the value, also in grey
// and for the colour-blind.
Color colormap(double x) {
    static const int V[9][3] = {{68, 1, 84},    {71, 44, 122}, {59, 81, 139},  {44, 113, 142}, {33, 144, 141},
                                {39, 173, 129}, {92, 200, 99}, {170, 220, 50}, {253, 231, 37}};
    if (std::isnan(x)) return PALE;
    const double at = std::clamp(x, 0.0, 1.0) * 8;
    const int i = std::min(7, int(at));
    auto mix = [&](int k) { return (V[i][k] + (V[i + 1][k] - V[i][k]) * (at - i)) / 255; };
    return {mix(0), mix(1), mix(2)};
}

// A drawing context; `bounds` grows with all that is drawn.
struct Pen {
    Cairo::Context* to;
    double right = 0, bottom = 0;
    void reach(double x, double y) { right = std::max(right, x), bottom = std::max(bottom, y); }
    void color(Color c) { cairo().set_source_rgb(to, c.r, c.g, c.b); }

    double width(const std::string& text, double size) {
        Cairo::Extents e;
        cairo().set_font_size(to, size);
        cairo().text_extents(to, text.c_str(), &e);
        return e.x_advance;
    }
    // (x, y): left end (align 0), middle (0.5) or right end (1) of the base line; up: rotated
    // upwards.
    void text(const std::string& text, double x, double y, double size, double align = 0, bool up = false) {
        const double w = width(text, size);
        cairo().save(to);
        cairo().translate(to, x, y);
        if (up) cairo().rotate(to, -std::acos(0.0));
        cairo().move_to(to, -align * w, 0);
        cairo().show_text(to, text.c_str());
        cairo().restore(to);
        if (up) reach(x + size / 2, y + align * w);
        else reach(x + (1 - align) * w, y + size / 2);
    }
    void line(const std::vector<Point>& points, double thick) {
        cairo().set_line_width(to, thick);
        for (size_t i = 0; i < points.size(); i++) {
            (i ? cairo().line_to : cairo().move_to)(to, points[i].x, points[i].y);
            reach(points[i].x, points[i].y);
        }
        cairo().stroke(to);
    }
    // Draws cells of `cell` pixels as one image: no seams, and small files.
    void cells(const HeatmapPanel& m, double x, double y, int cell) {
        const int w = m.columns * cell, h = m.rows * cell;
        Cairo::Surface* image = cairo().image_surface_create(Cairo::FORMAT_RGB24, w, h);
        unsigned char* data = cairo().image_surface_get_data(image);
        const int stride = cairo().image_surface_get_stride(image);
        for (int i = 0; i < h && data; i++)
            for (int j = 0; j < w; j++) {
                const Color c = colormap(m.values[size_t(i / cell * m.columns + j / cell)]);
                const uint32_t pixel = uint32_t(std::lround(c.r * 255)) << 16 | uint32_t(std::lround(c.g * 255)) << 8 |
                                       uint32_t(std::lround(c.b * 255));
                __builtin_memcpy(data + i * stride + j * 4, &pixel, 4);
            }
        cairo().surface_mark_dirty(image);
        cairo().set_source_surface(to, image, x, y);
        cairo().pattern_set_filter(cairo().get_source(to), Cairo::FILTER_NEAREST);
        cairo().paint(to);
        cairo().surface_destroy(image);
        reach(x + w, y + h);
    }
};

int collect(void* to, const unsigned char* data, unsigned bytes) {
    static_cast<std::string*>(to)->append(reinterpret_cast<const char*>(data), bytes);
    return 0;
}
Status write_picture(const std::string& path, const std::function<void(Pen& pen)>& draw) {
    TRY(picture_check(path));
    const Cairo& c = cairo();
    constexpr double MARGIN = 16;
    auto begin = [&](Cairo::Surface* surface) {
        Pen pen{c.create(surface)};
        c.select_font_face(pen.to, "sans-serif", 0, 0);
        return pen;
    };
    Cairo::Surface* nothing = c.image_surface_create(Cairo::FORMAT_RGB24, 1, 1);
    Pen probe = begin(nothing);
    draw(probe);
    const double width = std::ceil(probe.right + 2 * MARGIN), height = std::ceil(probe.bottom + 2 * MARGIN);
    c.destroy(probe.to), c.surface_destroy(nothing);
    const double zoom = width * height < 4e6 ? 2 : 1;    // .png pixels per unit: sharp letters
    std::string file;
    Cairo::Surface* surface = is_png(path)
                                  ? c.image_surface_create(Cairo::FORMAT_RGB24, int(width * zoom), int(height * zoom))
                                  : c.svg_surface_create_for_stream(collect, &file, width, height);
    int failed = c.surface_status(surface);    // an error if it is too large
    if (!failed) {
        Pen pen = begin(surface);
        if (is_png(path)) c.scale(pen.to, zoom, zoom);
        pen.color({1, 1, 1});
        c.paint(pen.to);
        c.translate(pen.to, MARGIN, MARGIN);
        draw(pen);
        failed = c.status(pen.to);
        c.destroy(pen.to);
    }
    if (is_png(path) && !failed) failed = c.surface_write_to_png_stream(surface, collect, &file);
    c.surface_finish(surface);
    if (!failed) failed = c.surface_status(surface);
    c.surface_destroy(surface);
    if (failed)
        return fail(Exit::run,
                    "%s: libcairo could not draw %.0f x %.0f pixels: %s; let the picture show less, such as "
                    "fewer heads or lengths",
                    path.c_str(), width * zoom, height * zoom, c.status_to_string(failed));
    return replace_file(path, file);
}

// ---- heatmaps -----------------------------------------------------------------------------------

constexpr double NAME = 10, TITLE = 12, HEAD = 15, GAP = 18;    // letter sizes, and the gap between panels

double widest(Pen& pen, const std::vector<std::string>& names, double size) {
    double most = 0;
    for (auto& name : names) most = std::max(most, pen.width(name, size));
    return most;
}
int cell_of(const HeatmapPicture& all, const HeatmapPanel& m) {
    return std::clamp(all.size / std::max({m.rows, m.columns, 1}), 1, 36);
}
bool upright(Pen& pen, const HeatmapPicture& all,
             const HeatmapPanel& m) {    // only if a cell is too narrow for its name
    return widest(pen, m.column_names, NAME) > cell_of(all, m) - 2;
}
// Draws one panel with names and title at (x, y). left, below: space for the names.
void draw_map(Pen& pen, const HeatmapPanel& m, const HeatmapPicture& all, double x, double y, double left,
              double below) {
    const int cell = cell_of(all, m), every = std::max(1, int(std::ceil((NAME + 2) / cell)));
    const double width = m.columns * cell, height = m.rows * cell;
    const bool up = upright(pen, all, m);
    pen.color(INK);
    if (!m.title.empty()) pen.text(m.title, x + left, y - 8, TITLE);
    pen.cells(m, x + left, y, cell);
    pen.color(INK);
    for (int i = 0; i < int(m.row_names.size()); i += every)
        pen.text(m.row_names[size_t(i)], x + left - 4, y + (i + 0.5) * cell + NAME / 3, NAME, 1);
    for (int j = 0; j < int(m.column_names.size()); j += every)
        pen.text(m.column_names[size_t(j)], x + left + (j + 0.5) * cell + (up ? NAME / 3 : 0),
                 y + height + (up ? 4 : NAME + 3), NAME, up ? 1 : 0.5, up);
    for (size_t k = 0; k < m.texts.size(); k++) {
        if (pen.width(m.texts[k], NAME) > cell) continue;
        pen.color(m.values[k] < 0.6 ? Color{1, 1, 1} : INK);
        pen.text(m.texts[k], x + left + (double(k % size_t(m.columns)) + 0.5) * cell,
                 y + (double(k / size_t(m.columns)) + 0.5) * cell + NAME / 3, NAME, 0.5);
    }
    pen.color(INK);
    if (!all.column_axis.empty())
        pen.text(all.column_axis, x + left + width / 2, y + height + below + TITLE + 4, TITLE, 0.5);
    if (!all.row_axis.empty()) pen.text(all.row_axis, x + TITLE, y + height / 2, TITLE, 0.5, true);
}
}    // namespace

Status picture_check(const std::string& path) {
    if (!is_png(path) && !path.ends_with(".svg"))
        return fail(Exit::usage, "--picture %s: expected a file's name that ends in .png or .svg", path.c_str());
    if (!cairo().found)
        return fail(Exit::run, "--picture %s: there is no libcairo.so.2 here to draw it (Debian's package libcairo2)",
                    path.c_str());
    return check_writable(path, "--picture");
}

Status write_heatmaps(const std::string& path, const HeatmapPicture& all) {
    return write_picture(path, [&](Pen& pen) {
        pen.color(INK);
        pen.text(all.title, 0, HEAD, HEAD);
        const bool titled = std::any_of(all.maps.begin(), all.maps.end(), [](auto& m) { return !m.title.empty(); });
        const double title = titled ? TITLE + 8 : 0, top = HEAD + GAP + title;
        double left = 0, below = 0, y = top, right = 0;
        for (auto& m : all.maps) {
            left = std::max(left, widest(pen, m.row_names, NAME) + (m.row_names.empty() ? 0 : 4));
            below = std::max(below, upright(pen, all, m) ? widest(pen, m.column_names, NAME) + 4 : NAME + 6);
        }
        left += all.row_axis.empty() ? 0 : TITLE + 8;
        for (size_t i = 0; i < all.maps.size(); i += size_t(all.across)) {
            double x = 0, lowest = y;
            for (size_t k = i; k < std::min(all.maps.size(), i + size_t(all.across)); k++) {
                Pen one{pen.to};    // measures this panel
                draw_map(one, all.maps[k], all, x, y, left, below);
                x = one.right + GAP, lowest = std::max(lowest, one.bottom);
                pen.reach(one.right, one.bottom);
            }
            right = std::max(right, x), y = lowest + GAP + title;
        }
        constexpr int height = 160, width = 14;
        HeatmapPanel bar{"", height, width, {}};
        for (int i = 0; i < height * width; i++) bar.values.push_back(1 - double(i / width) / height);
        if (!all.legend.empty()) pen.cells(bar, right + GAP, top, 1);
        pen.color(INK);
        for (auto& [value, name] : all.legend)
            pen.text(name, right + GAP + 20, top + (1 - value) * height + NAME / 3, NAME);
    });
}

// ---- curves -------------------------------------------------------------------------------------

Status write_curves(const std::string& path, const CurvePicture& p) {
    constexpr double W = 640, H = 360, LEFT = 70, TOP = 40;
    auto axis_value = [&](double x) { return p.log_x ? std::log10(std::max(x, 1e-9)) : x; };
    double x0 = INFINITY, x1 = -INFINITY, y0 = INFINITY, y1 = -INFINITY;
    for (auto& c : p.curves)
        for (auto& at : c.line) {
            x0 = std::min(x0, axis_value(at.x)), x1 = std::max(x1, axis_value(at.x));
            y0 = std::min(y0, at.y), y1 = std::max(y1, at.y);
        }
    if (!(x1 > x0)) x0 -= 0.5, x1 += 0.5;
    const double pad = y1 > y0 ? 0.05 * (y1 - y0) : 0.5;
    y0 -= pad, y1 += pad;
    auto x_of = [&](double x) { return LEFT + (axis_value(x) - x0) / (x1 - x0) * W; };
    auto y_of = [&](double y) { return TOP + (y1 - y) / (y1 - y0) * H; };
    return write_picture(path, [&](Pen& pen) {
        pen.color(INK);
        pen.text(p.title, 0, HEAD, HEAD);
        pen.text(p.y_axis, TITLE, TOP + H / 2, TITLE, 0.5, true);
        pen.text(p.x_axis, LEFT + W / 2, TOP + H + 44, TITLE, 0.5);
        for (double x : p.log_x ? log_ticks(x0, x1) : axis_ticks(x0, x1, 8)) {
            pen.color(PALE);
            pen.line({{x_of(x), TOP}, {x_of(x), TOP + H}}, 1);
            pen.color(INK);
            pen.text(formatted("%.6g", x), x_of(x), TOP + H + 18, NAME, 0.5);
        }
        for (double y : axis_ticks(y0, y1, 8)) {
            pen.color(PALE);
            pen.line({{LEFT, y_of(y)}, {LEFT + W, y_of(y)}}, 1);
            pen.color(INK);
            pen.text(formatted("%.6g", y), LEFT - 6, y_of(y) + NAME / 3, NAME, 1);
        }
        pen.line({{LEFT, TOP}, {LEFT, TOP + H}, {LEFT + W, TOP + H}}, 1.2);
        for (size_t i = 0; i < p.curves.size(); i++) {
            std::vector<Point> points;
            for (auto& at : p.curves[i].line) points.push_back({x_of(at.x), y_of(at.y)});
            pen.color(colormap(double(i) / double(std::max<size_t>(2, p.curves.size())) + 0.25));
            pen.line(points, 1.8);
            pen.text(p.curves[i].legend, LEFT, TOP + H + 66 + 16 * double(i), NAME);
        }
    });
}
